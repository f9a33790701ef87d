"""A worker's KV memory: blocks of cells, cut from pages, which the groups share.

Blocks of different groups may lie on the same bytes of a page. When a block is allocated, what
other groups had in its page is therefore destroyed: a page that serves two groups at once is found
by the next read.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.core.config import CoreConfig

POISON = -1


class SimulationError(AssertionError):
    """A plan or an event of the core that is wrong."""


def require(condition: bool, message: str) -> None:
    """Raise SimulationError unless the condition holds."""
    if not condition:
        raise SimulationError(message)


class Memory:
    """The cells of all blocks by group, and the version of the weights each was computed with."""

    def __init__(self, config: CoreConfig) -> None:
        self._per_page = config.blocks_per_page
        self._block_bytes = [group.block_bytes for group in config.groups]
        self.is_paged = any(count > 1 for count in self._per_page)
        self._empty = [POISON] * config.block_size
        # With equal sizes, a number means the same block in every group.
        sizes = self._per_page if self.is_paged else (1,)
        cells = [[self._empty for _ in range(config.num_blocks * size)] for size in sizes]
        versions = [[POISON] * (config.num_blocks * size) for size in sizes]
        repeats = 1 if self.is_paged else len(config.groups)
        self.cells = cells * repeats  # group → block → cells
        self.versions = versions * repeats

    def check_pages(self) -> None:
        """Require that a page, as large as the largest block, has as many blocks as fit."""
        page_bytes = max(self._block_bytes)
        for size, count in zip(self._block_bytes, self._per_page, strict=True):
            fits = count * size <= page_bytes < (count + 1) * size
            require(fits, f"{count} blocks of {size} bytes in a page of {page_bytes}")

    def place(self, group: int, block: int) -> tuple[int, int]:
        """Return a name of a block that no other block has."""
        return (group if self.is_paged else 0), block

    def write(self, group: int, block: int, cells: list[int], version: int) -> None:
        """Replace the content of a block."""
        self.cells[group][block] = cells
        self.versions[group][block] = version

    def poison(self, group: int, blocks: Iterable[int]) -> None:
        """Forget the content of newly allocated blocks, and what else lies on the same bytes."""
        for block in blocks:
            require(block != 0, "the null block was allocated")
            self.write(group, block, list(self._empty), POISON)
            if self.is_paged:
                self._destroy_others(group, block // self._per_page[group])

    def _destroy_others(self, group: int, page: int) -> None:
        for other, per_page in enumerate(self._per_page):
            if other != group:
                for block in range(page * per_page, (page + 1) * per_page):
                    self.write(other, block, self._empty, POISON)

    def copy(self, group: int, source: int, destination: int) -> None:
        """Copy a block of a group."""
        cells, version = self.cells[group][source], self.versions[group][source]
        self.write(group, destination, list(cells), version)
