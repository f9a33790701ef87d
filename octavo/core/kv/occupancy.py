"""The state of a pool's memory by place, for people who watch an engine: used, kept or free."""

from __future__ import annotations

from itertools import compress
from typing import NamedTuple

from octavo.core.kv.block_pool import NULL_BLOCK, Tables
from octavo.core.kv.policies import Pool

NUM_CELLS = 512
MAX_BLOCKS_READ = 1 << 16  # of a larger pool only every second block is read, or every third
MAX_ENTRIES_READ = 4096  # likewise of all tables together


class Occupancy(NamedTuple):
    """The memory of a pool, cut into cells of equal size; shares are per cent, rounded up."""

    cell_blocks: int  # of a cell; the last may have fewer
    used: tuple[int, ...]  # the share that sequences hold, by cell
    kept: tuple[int, ...]  # the share that is free, and whose content can be found again


def take_occupancy(pool: Pool, num_cells: int = NUM_CELLS) -> Occupancy:
    """Return the state of all blocks but the null block; pages count where there are some."""
    holders = pool.holders()
    num_blocks = pool.num_blocks - 1
    width = -(-num_blocks // num_cells)
    stride = -(-num_blocks // MAX_BLOCKS_READ)
    used, kept = [], []
    for begin in range(1, num_blocks + 1, width):
        some = slice(begin, begin + width, stride)
        counts = holders[some]
        used.append(_share(len(counts) - counts.count(0), len(counts)))
        kept.append(_share([*compress(counts, pool.kept_labels(some))].count(0), len(counts)))
    return Occupancy(width, tuple(used), tuple(kept))


def _share(count: int, whole: int) -> int:
    return -(-100 * count // whole)


def cells_of(
    tables: Tables, blocks_per_page: tuple[int, ...], cell_blocks: int, stride: int
) -> tuple[int, ...]:
    """Return the cells in which a sequence holds blocks, of which one in `stride` is read."""
    cells: dict[int, None] = {}
    for table, per_page in zip(tables, blocks_per_page, strict=False):  # one that waits has none
        held = [block for block in table[::stride] if block != NULL_BLOCK]
        cells.update(dict.fromkeys([(block // per_page - 1) // cell_blocks for block in held]))
    return tuple(sorted(cells))
