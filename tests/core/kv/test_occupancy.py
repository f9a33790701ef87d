"""The state of a pool's memory by place: used, kept or free, in cells of equal size."""

import pytest

from octavo.core.kv import occupancy
from octavo.core.kv.block_pool import BlockPool
from octavo.core.kv.occupancy import cells_of, take_occupancy
from octavo.core.kv.page_pool import PagePool


def test_each_block_of_a_small_pool_has_a_cell() -> None:
    pool = BlockPool(6)
    assert pool.allocate(3) == [1, 2, 3]
    pool.label(2, 0, b"two")
    pool.release(2)
    assert take_occupancy(pool) == (1, (100, 0, 100, 0, 0), (0, 100, 0, 0, 0))


def test_a_used_block_with_a_label_is_not_kept_too() -> None:
    pool = BlockPool(3)
    assert pool.allocate(1) == [1]
    pool.label(1, 0, b"one")
    assert take_occupancy(pool) == (1, (100, 0), (0, 0))


def test_cells_of_several_blocks_have_shares_rounded_up() -> None:
    pool = BlockPool(9)
    pool.allocate(4)
    pool.label(4, 0, b"four")
    pool.release(4)
    assert take_occupancy(pool, num_cells=3) == (3, (100, 0, 0), (0, 34, 0))


def test_of_a_large_pool_not_every_block_is_read() -> None:
    pool = BlockPool(occupancy.MAX_BLOCKS_READ * 2 + 1)
    pool.allocate(occupancy.MAX_BLOCKS_READ)
    found = take_occupancy(pool, num_cells=4)
    assert found == (occupancy.MAX_BLOCKS_READ // 2, (100, 100, 0, 0), (0, 0, 0, 0))


def test_pages_are_used_kept_or_free() -> None:
    pool = PagePool(4, (2, 1))
    assert pool.allocate(2, 1) == [2, 3, 2]
    pool.label(3, 0, b"three")
    pool.release(2, 0)
    assert take_occupancy(pool) == (1, (100, 100, 0), (0, 0, 0))
    pool.release(3, 0)
    assert take_occupancy(pool) == (1, (0, 100, 0), (100, 0, 0))


def test_of_many_pages_not_every_one_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = PagePool(4 * occupancy.MAX_BLOCKS_READ + 1, (1,))
    reads: list[int] = []
    kept_labels = PagePool.kept_labels

    def read(self: PagePool, some: slice) -> list[bool]:
        found = kept_labels(self, some)
        reads.append(len(found))
        return found

    monkeypatch.setattr(PagePool, "kept_labels", read)
    take_occupancy(pool, num_cells=4)
    assert sum(reads) == occupancy.MAX_BLOCKS_READ


def test_a_table_is_in_the_cells_of_its_blocks_and_pages() -> None:
    assert cells_of(([1, 2, 0, 9],), (1,), 1, 1) == (0, 1, 8)
    assert cells_of(([1, 2, 0, 9],), (1,), 4, 1) == (0, 2)
    assert cells_of(([6, 7], [2]), (2, 1), 1, 1) == (1, 2)
    assert cells_of(([1, 2, 3, 4],), (1,), 1, 2) == (0, 2), "every second block is read"
