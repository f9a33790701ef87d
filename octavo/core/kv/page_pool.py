"""A pool of KV blocks of several sizes: pages of equal size, each cut into blocks of one group.

A page is as large as the largest group's block. While any of its blocks is referenced, it belongs
to one group, and its other blocks serve that group alone; when the last one is released, the page
serves any group again. What it holds stays in the index until then:

                 taken for a group                    the last block is released
    free page ─────────────────────▶ page of a group ─────────────────────────────▶ free page
                                                                       (of the same content)

The blocks of page p have the numbers p·n … p·n + n-1, where n is the number of that group's blocks
in a page; so equal sizes give the numbers of `BlockPool`. Page 0 is the null page.

An allocation uses, in this order: blocks of the group's own pages without content that could be
shared; free pages, those without such content first, then the longest unused; cached blocks of
its own pages, the longest unused first.

Fragmentation. A page with one referenced block is of no use to other groups. The bound that the
scheduler relies on: if no block of a group's pages is cached, then a page is taken for the group
only when all blocks of its pages are referenced. So a sequence that is alone in the pool, began
with nothing, and caches nothing, takes at most ceil(blocks / n) pages for the most blocks that it
ever has of a group. The scheduler runs a sequence like that if it is alone and still lacks blocks
(`Sequence.is_exclusive`); admission has verified that these pages exist.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from octavo.core.kv.block_pool import NULL_BLOCK, Tables
from octavo.core.kv.cache_log import CacheLog

Label = tuple[int, bytes]


class PagePool:
    """The KV blocks of groups with different sizes; methods and meanings are those of BlockPool."""

    can_fragment = True

    __slots__ = (
        "_cached",
        "_empty_pages",
        "_idle_pages",
        "_index",
        "_spare",
        "blocks_per_page",
        "labels",
        "log",
        "num_blocks",
        "num_held",
        "owners",
        "ref_counts",
    )

    def __init__(self, num_pages: int, blocks_per_page: tuple[int, ...]) -> None:
        assert num_pages >= 2, "a pool needs the null page and one more"
        self.num_blocks = num_pages  # of the largest group
        self.blocks_per_page = blocks_per_page
        self.owners: list[int | None] = [None] * num_pages  # the group that a page was cut for
        self.num_held = [0] * num_pages  # referenced blocks of each page
        self.ref_counts = [[0] * (num_pages * count) for count in blocks_per_page]
        self.labels: list[list[Label | None]] = [
            [None] * (num_pages * count) for count in blocks_per_page
        ]
        self._index: tuple[dict[bytes, int], ...] = tuple({} for _ in blocks_per_page)
        self.log: CacheLog | None = None
        # Free pages: without a label, the last is used first; with labels, the first.
        self._empty_pages = dict.fromkeys(range(num_pages - 1, 0, -1))
        self._idle_pages: dict[int, None] = {}
        # By group, free blocks of pages in use: without a label, and with one in order of reuse.
        self._spare: tuple[dict[int, None], ...] = tuple({} for _ in blocks_per_page)
        self._cached: tuple[dict[int, None], ...] = tuple({} for _ in blocks_per_page)

    @property
    def num_free(self) -> int:
        """The number of pages that any group can take."""
        return len(self._empty_pages) + len(self._idle_pages)

    def holders(self) -> list[int]:
        """Return how many blocks of each page are held."""
        return self.num_held

    def kept_labels(self, some: slice) -> list[bool]:
        """Return what is true for each free one of these pages that can be found again."""
        return [page in self._idle_pages for page in range(*some.indices(self.num_blocks))]

    def pages_for(self, counts: list[int]) -> int:
        """Return how many free pages so many blocks of each group take."""
        return sum(self._least_pages(counts))

    def _least_pages(self, counts: list[int]) -> list[int]:
        return [
            max(0, -(-(count - len(spare) - len(cached)) // per_page))
            for count, spare, cached, per_page in zip(
                counts, self._spare, self._cached, self.blocks_per_page, strict=True
            )
        ]

    def pages_freed_by(self, holders: Iterable[Tables], kept: Tables) -> int:
        """Return how many pages would be free if these left, without those of blocks in `kept`."""
        counts: Counter[tuple[int, int]] = Counter()
        for tables in holders:
            for group, table in enumerate(tables):
                counts.update([(group, block) for block in table if block != NULL_BLOCK])
        for group, table in enumerate(kept):
            for block in table:
                counts.pop((group, block), None)
        # Blocks without a holder, by page.
        left = Counter(
            block // self.blocks_per_page[group]
            for (group, block), count in counts.items()
            if self.ref_counts[group][block] == count
        )
        return [self.num_held[page] == count for page, count in left.items()].count(True)

    def pages_taken_by(self, tables: Tables) -> int:
        """Return how many free pages a holder of these blocks would take."""
        pages = dict.fromkeys(
            [
                block // per_page
                for table, per_page in zip(tables, self.blocks_per_page, strict=True)
                for block in table
                if block != NULL_BLOCK
            ]
        )
        return [self.num_held[page] for page in pages].count(0)

    def allocate(self, *counts: int) -> list[int] | None:
        """Take so many blocks for each group, group after group; None if there are too few."""
        least = self._least_pages([*counts])
        extra = self.num_free - sum(least)
        if extra < 0:
            return None
        blocks: list[int] = []
        for group, count in enumerate(counts):
            lacking = count - len(self._spare[group])
            wanted = max(0, -(-lacking // self.blocks_per_page[group]))
            num_pages = min(wanted, least[group] + extra)
            extra -= num_pages - least[group]
            for _ in range(num_pages):
                self._cut(self._take_page(), group)
            blocks.extend([self._take_block(group) for _ in range(count)])
        return blocks

    def _take_page(self) -> int:
        if self._empty_pages:
            return self._empty_pages.popitem()[0]
        page = next(iter(self._idle_pages))
        del self._idle_pages[page]
        owner = self.owners[page]
        assert owner is not None
        for block in self._blocks_of(page, owner):
            self._remove_label(block, owner)
        return page

    def _cut(self, page: int, group: int) -> None:
        """Assign a free page without labels to a group."""
        self.owners[page] = group
        self._spare[group].update(dict.fromkeys(self._blocks_of(page, group)))

    def _take_block(self, group: int) -> int:
        spare = self._spare[group] or self._cached[group]
        block = next(iter(spare))
        del spare[block]
        self._remove_label(block, group)
        self.ref_counts[group][block] = 1
        self.num_held[block // self.blocks_per_page[group]] += 1
        return block

    def _blocks_of(self, page: int, group: int) -> range:
        per_page = self.blocks_per_page[group]
        return range(page * per_page, (page + 1) * per_page)

    def acquire(self, block: int, group: int = 0) -> None:
        """Count another holder of a block; its page belongs to its group while it is held."""
        counts = self.ref_counts[group]
        if counts[block]:
            counts[block] += 1
            return
        assert self.labels[group][block] is not None, f"block {block} is free and has no label"
        counts[block] = 1
        page = block // self.blocks_per_page[group]
        if not self.num_held[page]:
            del self._idle_pages[page]
            for other in self._blocks_of(page, group):
                self._add_free(other, group)
        del self._cached[group][block]
        self.num_held[page] += 1

    def _add_free(self, block: int, group: int) -> None:
        """Enter a free block of a page in use into the list that its label decides."""
        free = self._spare if self.labels[group][block] is None else self._cached
        free[group][block] = None

    def release(self, block: int, group: int = 0) -> None:
        """Count one holder less; with the last holder of its blocks, a page becomes free."""
        counts = self.ref_counts[group]
        assert counts[block] > 0, f"block {block} is released more often than acquired"
        counts[block] -= 1
        if counts[block]:
            return
        page = block // self.blocks_per_page[group]
        self.num_held[page] -= 1
        if self.num_held[page]:
            self._add_free(block, group)
            return
        blocks = self._blocks_of(page, group)
        for other in blocks:
            self._spare[group].pop(other, None)
            self._cached[group].pop(other, None)
        labels = self.labels[group]
        is_empty = all(labels[other] is None for other in blocks)
        (self._empty_pages if is_empty else self._idle_pages)[page] = None

    def label(self, block: int, group: int, digest: bytes) -> bool:
        """Let later sequences find this block; return whether it has got the label now."""
        assert self.ref_counts[group][block] > 0, f"block {block} is labelled while it is free"
        if self.labels[group][block] is None and digest not in self._index[group]:
            self.labels[group][block] = (group, digest)
            self._index[group][digest] = block
            return True
        return False

    def _remove_label(self, block: int, group: int) -> None:
        label = self.labels[group][block]
        if label is not None:
            del self._index[group][label[1]]
            self.labels[group][block] = None
            if self.log is not None:
                self.log.remove(group, label[1])

    def unlabel(self, block: int, group: int = 0) -> None:
        """Remove a block's label, so that it is found no more."""
        self._remove_label(block, group)
        if self.ref_counts[group][block]:
            return
        page = block // self.blocks_per_page[group]
        if self.num_held[page]:
            self._cached[group].pop(block, None)
            self._spare[group][block] = None
        elif page in self._idle_pages:
            labels = self.labels[group]
            if all(labels[other] is None for other in self._blocks_of(page, group)):
                del self._idle_pages[page]
                self._empty_pages[page] = None

    def label_of(self, block: int, group: int = 0) -> Label | None:
        """Return a block's label as (group, digest); None if it has none."""
        return self.labels[group][block]

    def labelled(self, group: int) -> dict[int, Label]:
        """Return the labels of one group by block, for checks."""
        pairs = enumerate(self.labels[group])
        return {block: label for block, label in pairs if label is not None}

    def find(self, group: int, digest: bytes) -> int | None:
        """Return the block with this label; None if there is none."""
        return self._index[group].get(digest)

    def indexed(self, group: int) -> dict[bytes, int]:
        """Return the index of one group, to be read only."""
        return self._index[group]

    def clear_labels(self) -> None:
        """Remove all labels, so that no block is found any more."""
        for group, index in enumerate(self._index):
            for block in index.values():
                self.labels[group][block] = None
            index.clear()
            self._spare[group].update(self._cached[group])
            self._cached[group].clear()
        self._empty_pages.update(self._idle_pages)
        self._idle_pages.clear()

    def free_pages(self) -> list[int]:
        """Return the pages that any group can take, for checks and tests."""
        return [*self._empty_pages, *self._idle_pages]

    def free_blocks_of(self, group: int) -> tuple[list[int], list[int]]:
        """Return the group's free blocks in pages in use: without a label, and with one."""
        return [*self._spare[group]], [*self._cached[group]]
