"""KV that is saved to other places and loaded from there: another process, a disk, a remote cache.

The core decides what is transferred, the workers do it, and both name a block by its KV group and
digest. What other places have is known from a `KVIndex`, which may be wrong: a load that fails
costs nothing but time.

A block is offered once it is in the prefix cache. The next plan carries the offer, so that the
workers read the block before anything can be written to it again.

A fetch is a hold (lifecycle.py). The blocks that a waiting sequence lacks are allocated for it and
listed as loads; no plan reads them until a result says that a load has succeeded. Then the block
enters the prefix cache without an owner, and the sequence, back in the queue, finds it there
as any other would. So a load that fails, comes too late or whose sequence has ended needs no
further care. Each sequence fetches once, so that a place that lies about what it has delays no
sequence for ever.
"""

from __future__ import annotations

from typing import Protocol

from octavo.core.kv.policies import Pool
from octavo.core.plan import BlockTransfer
from octavo.core.sequence import Sequence

Content = tuple[int, bytes]  # KV group, digest


class KVIndex(Protocol):
    """An index of the KV that other places have."""

    def has(self, group: int, digest: bytes) -> bool:
        """Return whether a load of this block would probably succeed."""

    def forget(self, group: int, digest: bytes) -> None:
        """Remove a block, whose content may be wrong."""

    def reset(self) -> None:
        """Remove everything: what was computed before now may not be used."""


class Load:
    """A block that is being loaded, and the sequences that wait for it."""

    __slots__ = ("block", "content", "is_wanted", "waiters")

    def __init__(self, content: Content, block: int) -> None:
        self.content = content
        self.block = block
        self.is_wanted = True  # its content may enter the prefix cache
        self.waiters: list[Sequence] = []


class Transfers:
    """The loads and saves of one engine: those for the next plan, and those under way."""

    def __init__(self, pool: Pool, index: KVIndex) -> None:
        self.index = index
        self.loads: list[BlockTransfer] = []
        self.saves: list[BlockTransfer] = []
        self.loading: dict[int, Load] = {}  # by number
        self._pool = pool
        self._by_content: dict[Content, Load] = {}
        self._next_number = 0

    def _transfer(self, content: Content, block: int) -> BlockTransfer:
        self._next_number += 1
        return BlockTransfer(self._next_number, content[0], block, content[1])

    # saves

    def offer(self, group: int, block: int, digest: bytes) -> None:
        """Save a block that has just entered the prefix cache, unless another place has it."""
        if not self.index.has(group, digest):
            self.saves.append(self._transfer((group, digest), block))

    # loads

    def fetch(self, sequence: Sequence, contents: list[Content], num_groups: int) -> int:
        """Load these blocks; return how many loads the sequence waits for, 0 if none can be made.

        A block that is being loaded already is not loaded twice.
        """
        lacking = [content for content in contents if content not in self._by_content]
        counts = [sum([group == each for each, _ in lacking]) for group in range(num_groups)]
        blocks = self._pool.allocate(*counts)
        if blocks is None:
            return 0
        by_group = sorted(lacking, key=lambda content: content[0])
        for content, block in zip(by_group, blocks, strict=True):
            transfer = self._transfer(content, block)
            self.loads.append(transfer)
            self.loading[transfer.number] = self._by_content[content] = Load(content, block)
        for content in contents:
            self._by_content[content].waiters.append(sequence)
        return len(contents)

    def end_load(self, number: int, has_succeeded: bool) -> list[Sequence]:
        """Let a block that has been loaded be found; return the sequences that waited for it."""
        load = self.loading.pop(number)
        group, digest = load.content
        if self._by_content.get(load.content) is load:
            del self._by_content[load.content]
        if has_succeeded and load.is_wanted:
            self._pool.label(load.block, group, digest)
        self._pool.release(load.block, group)
        return load.waiters

    # both

    @property
    def are_due(self) -> bool:
        """True if the next plan must carry some."""
        return bool(self.loads or self.saves)

    def take(self) -> tuple[tuple[BlockTransfer, ...], tuple[BlockTransfer, ...]]:
        """Return the loads and the saves that the next plan must carry, each of them once."""
        taken = tuple(self.loads), tuple(self.saves)
        self.loads, self.saves = [], []
        return taken

    def forget(self, group: int, digest: bytes) -> None:
        """Let no place keep a block whose content may be wrong."""
        self.index.forget(group, digest)
        self.saves = [each for each in self.saves if (each.group, each.digest) != (group, digest)]
        load = self._by_content.pop((group, digest), None)
        if load is not None:
            load.is_wanted = False

    def reset(self) -> None:
        """Use nothing that was saved or is being loaded."""
        self.index.reset()
        self.saves.clear()
        self._by_content.clear()
        for load in self.loading.values():
            load.is_wanted = False
