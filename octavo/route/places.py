"""The places of open requests: limited in number, by key, and by the bytes that are held."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from octavo.transport.errors import too_many, unavailable


class Place:
    """The place of one open request, with the bytes of its body while they are held."""

    __slots__ = ("_places", "num_bytes")

    def __init__(self, places: Places, num_bytes: int) -> None:
        self._places = places
        self.num_bytes = num_bytes

    def hold(self, num_bytes: int) -> None:
        """Hold as many bytes from now on; the room of the others is free again."""
        self._places.num_bytes += num_bytes - self.num_bytes
        self.num_bytes = num_bytes


class Places:
    """The places of all requests that are open."""

    def __init__(self, most: int, most_bytes: int, num_keys: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        # With several keys, one cannot take all that others need.
        self._most_of_key = max(1, most // 2) if num_keys > 1 else most
        self._by_owner: Counter[str] = Counter()
        self.num_open = 0
        self.num_bytes = 0  # of bodies

    @contextmanager
    def place(self, owner: str, num_bytes: int) -> Iterator[Place]:
        """Give a request a place until the block is left; refuse it if there is none."""
        if self.num_open >= self._most:
            raise unavailable(
                f"{self.num_open} requests are open, the most of this router",
                *("too_many_requests", 1),
            )
        if self._by_owner[owner] >= self._most_of_key:
            count = self._by_owner[owner]
            raise too_many(
                f"this key has {count} open requests, the most of one", 1, "too_many_requests"
            )
        if self.num_bytes and self.num_bytes + num_bytes > self._most_bytes:
            raise unavailable(
                f"the bodies of other requests have {self.num_bytes} bytes, and all together may "
                f"have {self._most_bytes}",
                *("bodies_full", 1),
            )
        place = Place(self, num_bytes)
        self.num_open += 1
        self.num_bytes += num_bytes
        self._by_owner[owner] += 1
        try:
            yield place
        finally:
            place.hold(0)
            self.num_open -= 1
            self._by_owner[owner] -= 1
            if not self._by_owner[owner]:
                del self._by_owner[owner]
