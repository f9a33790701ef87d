"""The prefixes that an engine has cached, as its events say.

Blocks are compared by their tokens, since each server names them by hashes of its own. A thread
applies events, and the event loop asks; each operation on a dict is one step for both.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

import msgspec

from octavo.route.kv_events.form import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Hash,
    KVEvent,
)

# Kinds of layers that need each block of a prefix; others need the last ones.
_WHOLE = ("full_attention", "mla_attention", None)
_OWN_MEMORY = ("GPU", None)
_MOST_SIZES = 4  # of blocks


class CacheView:
    """The blocks that one engine has cached; at most so many are remembered."""

    def __init__(self, most_blocks: int, *, ignores_tenants: bool) -> None:
        self._most = most_blocks
        self._ignores_tenants = ignores_tenants
        self.forget()

    def forget(self) -> None:
        """Forget everything: what comes next may not follow what was known."""
        self._names: dict[tuple[int, Hash], int] = {}  # the name here of each group's block
        self._groups: dict[int, int] = {}  # by that name: the groups that have it, as bits
        # Further blocks of a group that are here the same: of other tenants.
        self._more: dict[tuple[int, int], int] = {}
        self._needed = 0  # the groups that must have a block, as bits
        self._sizes: dict[int, None] = {}
        self.is_live = False  # it says what the engine has, and all changes come
        self.is_whole = False  # and it has all that the engine has

    def begin(self, *, knows_all: bool) -> None:
        """Begin to follow; `knows_all`: from the first event on, or from a clearing one."""
        self.is_live, self.is_whole = True, knows_all

    def __len__(self) -> int:
        return len(self._names)

    def num_tokens(self, tokens: Sequence[int], adapter: str = "") -> int:
        """Return how many tokens, from the first on, the engine has cached."""
        return max((self._walk(tokens, adapter, size) for size in [*self._sizes]), default=0)

    def _walk(self, tokens: Sequence[int], adapter: str, size: int) -> int:
        name = _root(adapter)
        groups, needed = self._groups, self._needed
        for end in range(size, len(tokens) + 1, size):
            name = _next(name, tokens[end - size : end])
            found = groups.get(name, 0)
            if not found or found & needed != needed:
                return end - size
        return len(tokens) // size * size

    def apply(self, events: Iterable[KVEvent]) -> None:
        """Apply the events of a batch, in order."""
        for event in events:
            if isinstance(event, AllBlocksCleared):
                self.forget()
                self.begin(knows_all=True)
            elif event.medium in _OWN_MEMORY:
                if isinstance(event, BlockRemoved):
                    group = event.group_idx or 0
                    for each in event.block_hashes:
                        self._remove(group, each)
                else:
                    self._store(event)

    def _store(self, event: BlockStored) -> None:
        group = event.group_idx or 0
        if event.parent_block_hash is None:
            name = _root(event.lora_name or "")
            # Older servers give an adapter's number alone, by which no request names it.
            is_unnamed = event.lora_id is not None and event.lora_name is None
            if is_unnamed or (not self._ignores_tenants and _is_of_tenant(event)):
                self.is_whole = False
                return  # and what follows it, whose parent is then unknown
        else:
            found = self._names.get((group, event.parent_block_hash))
            if found is None:
                self.is_whole = False
                return
            name = found
        if event.kv_cache_spec_kind in _WHOLE:
            self._needed |= 1 << group
        size = event.block_size
        if size not in self._sizes:
            if len(self._sizes) == _MOST_SIZES:
                self.is_whole = False
                return
            self._sizes[size] = None
        for index, each in enumerate(event.block_hashes):
            name = _next(name, event.token_ids[index * size : (index + 1) * size])
            self._remove(group, each)
            if len(self._names) >= self._most:
                self.is_whole = False
                return
            self._names[group, each] = name
            known = self._groups.get(name, 0)
            if known & 1 << group:
                self._more[group, name] = self._more.get((group, name), 0) + 1
            self._groups[name] = known | 1 << group

    def _remove(self, group: int, block: Hash) -> None:
        name = self._names.pop((group, block), None)
        if name is None:
            return
        more = self._more.pop((group, name), 0)
        if more:
            if more > 1:
                self._more[group, name] = more - 1
            return
        left = self._groups.get(name, 0) & ~(1 << group)
        if left:
            self._groups[name] = left
        else:
            self._groups.pop(name, None)


def _root(adapter: str) -> int:
    return hash(("root", adapter))


def _next(name: int, tokens: Sequence[int]) -> int:
    return hash((name, array("i", tokens).tobytes()))


def _is_of_tenant(event: BlockStored) -> bool:
    """Return whether a first block has more than its adapter that sets it apart."""
    keys = event.extra_keys[0] if event.extra_keys else None
    own = (msgspec.msgpack.encode(event.lora_name), msgspec.msgpack.encode(None))
    return any(bytes(each) not in own for each in keys or ())
