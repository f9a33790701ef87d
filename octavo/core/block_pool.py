"""Who holds which KV block: reference counts, the free list in order of reuse, the hash index.

A block is in exactly one of three states, and moves between them like this:

                    acquire / allocate                     release
    free, no label ───────────────────▶ referenced (ref>0) ─────────▶ free, at the FRONT
                                          │  ▲                        (nobody can want it: next out)
                                    label │  │ acquire
                                          ▼  │ (a hit)     release
                                        referenced, labelled ───────▶ free, labelled, at the BACK
                                                                      (longest unused goes first)

The free list is doubly linked through two plain lists of block numbers, so that taking a block
out of its middle (a prefix hit) costs the same few operations as taking its head. A labelled
block stays in the index while it is free; it leaves when it is handed out again. Block 0 is the
null block: it stands in tables where there is nothing to read, and is never handed out.
"""

from __future__ import annotations

NULL_BLOCK = 0


class BlockPool:
    """All KV blocks of one worker set."""

    __slots__ = ("_index", "_next", "_previous", "labels", "num_blocks", "num_free", "ref_counts")

    def __init__(self, num_blocks: int, num_groups: int = 1) -> None:
        assert num_blocks >= 2, "a pool needs the null block and one more"
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self.ref_counts = [0] * num_blocks
        # (group, digest) of a block whose content is known and final.
        self.labels: list[tuple[int, bytes] | None] = [None] * num_blocks
        self._index: tuple[dict[bytes, int], ...] = tuple({} for _ in range(num_groups))
        # A ring through block 0, which is never free itself: next of 0 is the head, previous of
        # 0 the tail.
        self._next = [*range(1, num_blocks), 0]
        self._previous = [num_blocks - 1, *range(num_blocks - 1)]

    def allocate(self, count: int) -> list[int] | None:
        """Take `count` blocks from the front of the free list; None if there are not so many."""
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

    def acquire(self, block: int) -> None:
        """Hold a block once more; a free one leaves the free list."""
        if self.ref_counts[block] == 0:
            assert self.labels[block] is not None, f"block {block} is free and has no content"
            before, after = self._previous[block], self._next[block]
            self._next[before] = after
            self._previous[after] = before
            self.num_free -= 1
        self.ref_counts[block] += 1

    def release(self, block: int) -> None:
        """Hold a block once less; the last holder returns it to the free list."""
        count = self.ref_counts[block] - 1
        assert count >= 0, f"block {block} is released more often than held"
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

    def label(self, block: int, group: int, digest: bytes) -> None:
        """Let later sequences find this block; the first block with a content keeps the name."""
        assert self.ref_counts[block] > 0, f"block {block} is labelled while nobody holds it"
        if self.labels[block] is None and digest not in self._index[group]:
            self.labels[block] = (group, digest)
            self._index[group][digest] = block

    def unlabel(self, block: int) -> None:
        """Let nobody find this block any more."""
        label = self.labels[block]
        if label is not None:
            group, digest = label
            del self._index[group][digest]
            self.labels[block] = None

    def find(self, group: int, digest: bytes) -> int | None:
        """The block with this content, if any."""
        return self._index[group].get(digest)

    def clear_labels(self) -> None:
        """Empty the index: no content is shared any more."""
        for index in self._index:
            index.clear()
        self.labels = [None] * self.num_blocks

    def free_blocks(self) -> list[int]:
        """The free list, next out first: for checks and tests."""
        blocks: list[int] = []
        block = self._next[NULL_BLOCK]
        while block != NULL_BLOCK and len(blocks) <= self.num_blocks:
            assert self._next[self._previous[block]] == block, f"free list torn at block {block}"
            blocks.append(block)
            block = self._next[block]
        return blocks

    def indexed(self, group: int) -> dict[bytes, int]:
        """The index of one group, to be read only: for checks and tests."""
        return self._index[group]
