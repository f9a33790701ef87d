"""A pool of KV blocks of one size: reference counts, the free list in order of reuse, the index.

A block is in exactly one of four states:

                    acquire / allocate                     release
    free, no label ───────────────────▶ referenced (ref>0) ─────────▶ free, at the FRONT
                                          │  ▲                        (not shareable: used first)
                                    label │  │ acquire
                                          ▼  │ (a hit)     release
                                        referenced, labelled ───────▶ free, labelled, at the BACK
                                                                      (longest unused: used first)

A label names the content of a block that is full and computed. The index finds blocks by label,
also free ones; a block loses its label when it is allocated again.

The free list is doubly linked through two plain lists of block numbers, so that a block is taken
out of its middle (a prefix hit) as quickly as from its head. Block 0 is the null block: it fills
tables where there is nothing to read, and is never allocated.

All KV groups share the numbers of the blocks. Where groups have blocks of different sizes,
`page_pool.PagePool` has the same methods; a page is one block here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from octavo.core.kv.cache_log import CacheLog

NULL_BLOCK = 0

Tables = tuple[list[int], ...]  # the block tables of one holder, by group


class BlockPool:
    """The KV blocks of one engine, by number; the workers hold their content."""

    can_fragment = False  # any free block serves any group

    __slots__ = (
        *("_index", "_next", "_previous", "labels", "log", "num_blocks", "num_free"),
        "ref_counts",
    )

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        assert num_blocks >= 2, "a pool needs the null block and one more"
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self.ref_counts = [0] * num_blocks
        # (group, digest) of each block whose content is final.
        self.labels: list[tuple[int, bytes] | None] = [None] * num_blocks
        self._index: tuple[dict[bytes, int], ...] = tuple({} for _ in range(num_groups))
        self.log: CacheLog | None = None  # where labels that are removed are noted, if anywhere
        # A ring through block 0, which is never free itself: the next of 0 is the head, the
        # previous of 0 is the tail.
        self._next = [*range(1, num_blocks), 0]
        self._previous = [num_blocks - 1, *range(num_blocks - 1)]

    def allocate(self, *counts: int) -> list[int] | None:
        """Take so many blocks for each group from the front of the free list, group after group.

        Return None and take none if there are too few.
        """
        count = sum(counts)
        if count > self.num_free:
            return None
        blocks = []
        following, labels, ref_counts = self._next, self.labels, self.ref_counts
        block = following[0]
        for _ in range(count):
            blocks.append(block)
            ref_counts[block] = 1
            if labels[block] is not None:
                self.unlabel(block)
            block = following[block]
        following[0] = block
        self._previous[block] = 0
        self.num_free -= count
        return blocks

    def pages_for(self, counts: list[int]) -> int:
        """Return how many free pages so many blocks of each group take."""
        return sum(counts)

    def pages_freed_by(self, holders: Iterable[Tables], kept: Tables) -> int:
        """Return how many pages would be free if these left, without the blocks in `kept`."""
        counts: Counter[int] = Counter()
        for tables in holders:
            for table in tables:
                counts.update(table)
        for block in (NULL_BLOCK, *[block for table in kept for block in table]):
            counts.pop(block, None)
        ref_counts = self.ref_counts
        return [ref_counts[block] == count for block, count in counts.items()].count(True)

    def pages_taken_by(self, tables: Tables) -> int:
        """Return how many free pages a holder of these blocks would take."""
        ref_counts = self.ref_counts
        num_free = 0
        for table in tables:
            num_free += [ref_counts[block] for block in table if block != NULL_BLOCK].count(0)
        return num_free

    def holders(self) -> list[int]:
        """Return how many hold each block."""
        return self.ref_counts

    def kept_labels(self, some: slice) -> list[tuple[int, bytes] | None]:
        """Return what is true for each free one of these blocks that can be found again."""
        return self.labels[some]

    def acquire(self, block: int, group: int = 0) -> None:
        """Count another holder of a block; a free block leaves the free list."""
        if self.ref_counts[block] == 0:
            assert self.labels[block] is not None, f"block {block} is free and has no label"
            before, after = self._previous[block], self._next[block]
            self._next[before] = after
            self._previous[after] = before
            self.num_free -= 1
        self.ref_counts[block] += 1

    def release(self, block: int, group: int = 0) -> None:
        """Count one holder less; the last holder returns the block to the free list."""
        count = self.ref_counts[block] - 1
        assert count >= 0, f"block {block} is released more often than acquired"
        self.ref_counts[block] = count
        if count:
            return
        if self.labels[block] is None:
            before, after = NULL_BLOCK, self._next[NULL_BLOCK]
        else:
            before, after = self._previous[NULL_BLOCK], NULL_BLOCK
        self._next[before] = block
        self._previous[after] = block
        self._next[block] = after
        self._previous[block] = before
        self.num_free += 1

    def label(self, block: int, group: int, digest: bytes) -> bool:
        """Let later sequences find this block, unless another has the same label.

        Return whether it has got the label now.
        """
        assert self.ref_counts[block] > 0, f"block {block} is labelled while it is free"
        if self.labels[block] is None and digest not in self._index[group]:
            self.labels[block] = (group, digest)
            self._index[group][digest] = block
            return True
        return False

    def unlabel(self, block: int, group: int = 0) -> None:
        """Remove a block's label, so that it is found no more."""
        label = self.labels[block]
        if label is not None:
            owner, digest = label
            del self._index[owner][digest]
            self.labels[block] = None
            if self.log is not None:
                self.log.remove(owner, digest)

    def label_of(self, block: int, group: int = 0) -> tuple[int, bytes] | None:
        """Return a block's label as (group, digest); None if it has none."""
        return self.labels[block]

    def labelled(self, group: int) -> dict[int, tuple[int, bytes]]:
        """Return the labels of one group by block, for checks."""
        pairs = enumerate(self.labels)
        return {block: label for block, label in pairs if label is not None and label[0] == group}

    def find(self, group: int, digest: bytes) -> int | None:
        """Return the block with this label; None if there is none."""
        return self._index[group].get(digest)

    def clear_labels(self) -> None:
        """Remove all labels, so that no block is found any more."""
        for index in self._index:
            index.clear()
        self.labels = [None] * self.num_blocks

    def free_blocks(self) -> list[int]:
        """Return the free list in order of reuse, for checks and tests."""
        blocks: list[int] = []
        block = self._next[NULL_BLOCK]
        while block != NULL_BLOCK and len(blocks) <= self.num_blocks:
            assert self._next[self._previous[block]] == block, (
                f"the free list is broken at block {block}"
            )
            blocks.append(block)
            block = self._next[block]
        return blocks

    def indexed(self, group: int) -> dict[bytes, int]:
        """Return the index of one group, to be read only."""
        return self._index[group]
