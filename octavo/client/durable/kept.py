"""What is kept for several keys, in bounded numbers and bytes: who gives when there is no room."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """A thing that is kept for a key."""

    owner: str
    num_bytes: int


T = TypeVar("T", bound=Sized)


class Kept(Generic[T]):
    """Things by their owner and their name, the oldest first.

    If there is no room, the key that has the most forgets what could be spared first, or else
    drops something. No key gives anything for one that would have more then.
    """

    def __init__(self, most_bytes: int, most: int) -> None:
        self._most_bytes, self._most = most_bytes, most
        self._things: dict[tuple[str, str], T] = {}
        self._spare: dict[str, dict[T, None]] = {}  # by owner: what can be forgotten
        self._num_of: Counter[str] = Counter()  # by owner
        self._bytes_of: Counter[str] = Counter()
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._things)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._things.values()))

    def find(self, owner: str, name: str) -> T | None:
        """Return what an owner has under a name."""
        return self._things.get((owner, name))

    def forget(self, thing: T) -> None:
        """Keep something no longer; this calls `_remove`."""
        raise NotImplementedError

    def _drop(self, name: str, owner: str | None) -> bool:
        """Drop something of a key that can spare nothing, for another; return if there was any."""
        raise NotImplementedError

    def _add(self, thing: T, name: str) -> None:
        self._things[thing.owner, name] = thing
        self._num_of[thing.owner] += 1
        self._count(thing.owner, thing.num_bytes)

    def _remove(self, thing: T, name: str) -> None:
        owner = thing.owner
        del self._things[owner, name]
        self._need(thing)
        self._num_of[owner] -= 1
        self._count(owner, -thing.num_bytes)
        if not self._num_of[owner]:
            del self._num_of[owner], self._bytes_of[owner]

    def _grow(self, thing: T, num_bytes: int) -> None:
        thing.num_bytes += num_bytes
        self._count(thing.owner, num_bytes)

    def _count(self, owner: str, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._bytes_of[owner] += num_bytes

    def _spare_one(self, thing: T) -> None:
        """Note that something can be spared from now on."""
        self._spare.setdefault(thing.owner, {})[thing] = None

    def _need(self, thing: T) -> None:
        """Note that something cannot be spared."""
        spare = self._spare.get(thing.owner, {})
        spare.pop(thing, None)
        if not spare:
            self._spare.pop(thing.owner, None)

    def _make_room(self, owner: str | None, num_bytes: int = 0, num_more: int = 0) -> bool:
        """Make room for so much more of a key, or for what there is; return whether there is."""
        while True:
            if self.num_bytes + num_bytes > self._most_bytes:
                has_given = self._give(self._bytes_of, owner, num_bytes, drops=True)
            elif len(self) + num_more > self._most:
                has_given = self._give(self._num_of, owner, num_more)
            else:
                return True
            if not has_given:
                return False

    def _give(
        self, amounts: Mapping[str, int], owner: str | None, more: int, *, drops: bool = False
    ) -> bool:
        own = 0 if owner is None else amounts.get(owner, 0) + more
        for name, amount in sorted(amounts.items(), key=lambda each: -each[1]):
            if name != owner and amount < own:
                continue
            if name in self._spare:
                self.forget(next(iter(self._spare[name])))
                return True
            if drops and self._drop(name, owner):
                return True
        return False
