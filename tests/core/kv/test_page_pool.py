"""A pool of pages: which page serves which group, and what is used again first."""

from __future__ import annotations

import pytest

from octavo.core.config import CoreConfig, KVGroup
from octavo.core.kv.block_pool import BlockPool
from octavo.core.kv.manager import make_pool
from octavo.core.kv.page_pool import PagePool


def test_equal_sizes_need_no_pages() -> None:
    groups = (KVGroup(block_bytes=7), KVGroup(window=3, block_bytes=7))
    made = make_pool(CoreConfig(num_blocks=5, max_model_len=9, groups=groups))
    assert isinstance(made, BlockPool)


def test_a_page_holds_as_many_small_blocks_as_fit() -> None:
    groups = (KVGroup(block_bytes=3), KVGroup(block_bytes=10), KVGroup(block_bytes=4))
    config = CoreConfig(num_blocks=5, max_model_len=9, groups=groups)
    assert config.blocks_per_page == (3, 1, 2)
    assert isinstance(make_pool(config), PagePool)


def test_blocks_of_a_group_fill_a_page_before_the_next_is_taken() -> None:
    pool = PagePool(4, (3, 1))
    assert pool.allocate(2, 0) == [3, 4]
    assert (pool.num_free, pool.pages_for([1, 0]), pool.pages_for([2, 0])) == (2, 0, 1)
    assert pool.allocate(2, 1) == [5, 6, 3]
    assert pool.num_free == 0


def test_an_allocation_is_all_or_nothing() -> None:
    pool = PagePool(3, (3, 1))
    assert pool.allocate(4, 1) is None
    assert pool.num_free == 2
    assert pool.allocate(3, 1) == [3, 4, 5, 2]


def test_a_page_is_free_when_its_last_block_is_released() -> None:
    pool = PagePool(2, (3, 1))
    assert pool.allocate(2, 0) == [3, 4]
    pool.release(3, 0)
    assert pool.allocate(0, 1) is None, "the page still serves the first group"
    assert pool.allocate(1, 0) == [5]
    pool.release(4, 0)
    pool.release(5, 0)
    assert pool.allocate(0, 1) == [1]


def test_a_free_page_keeps_its_content_until_it_is_taken() -> None:
    pool = PagePool(3, (2, 1))
    assert pool.allocate(2, 0) == [2, 3]
    pool.label(2, 0, b"one")
    pool.label(3, 0, b"two")
    pool.release(2, 0)
    pool.release(3, 0)
    assert (pool.find(0, b"one"), pool.num_free) == (2, 2)
    pool.acquire(2, 0)
    assert (pool.num_free, pool.find(0, b"two")) == (1, 3)
    pool.release(2, 0)
    assert pool.allocate(0, 2) == [2, 1], "the page without content is taken first"
    assert (pool.find(0, b"one"), pool.find(0, b"two")) == (None, None)


def test_without_a_free_page_a_group_uses_its_own_cached_blocks() -> None:
    pool = PagePool(2, (2, 1))
    assert pool.allocate(2, 0) == [2, 3]
    pool.label(3, 0, b"two")
    pool.release(3, 0)
    assert pool.allocate(1, 0) == [3]
    assert pool.find(0, b"two") is None


def test_pages_taken_by_hits_are_counted_once() -> None:
    pool = PagePool(3, (2, 1))
    assert pool.allocate(2, 0) == [2, 3]
    for block in (2, 3):
        pool.label(block, 0, b"%d" % block)
        pool.release(block, 0)
    assert pool.pages_taken_by(([0, 2, 3], [])) == 1
    pool.acquire(2, 0)
    assert pool.pages_taken_by(([0, 2, 3], [])) == 0


def test_a_label_that_is_removed_makes_its_block_the_first_to_be_used() -> None:
    pool = PagePool(3, (2, 1))
    assert pool.allocate(2, 0) == [2, 3]
    pool.label(3, 0, b"two")
    pool.release(3, 0)
    pool.unlabel(3, 0)
    assert pool.free_blocks_of(0) == ([3], [])
    pool.label(2, 0, b"one")
    pool.release(2, 0)
    assert pool.free_pages() == [2, 1]
    pool.unlabel(2, 0)
    assert pool.allocate(0, 1) == [1], "the page that became empty last"


def test_clearing_the_labels_keeps_the_reference_counts() -> None:
    pool = PagePool(3, (2, 1))
    assert pool.allocate(2, 0) == [2, 3]
    pool.label(2, 0, b"one")
    pool.label(3, 0, b"two")
    pool.release(3, 0)
    pool.clear_labels()
    assert (pool.find(0, b"one"), pool.free_blocks_of(0)) == (None, ([3], []))
    assert pool.ref_counts[0][2:4] == [1, 0]


def test_misuse_is_an_error() -> None:
    pool = PagePool(3, (2, 1))
    with pytest.raises(AssertionError, match="block 2 is released more often than acquired"):
        pool.release(2, 0)
    with pytest.raises(AssertionError, match="block 2 is free and has no label"):
        pool.acquire(2, 0)
    with pytest.raises(AssertionError, match="block 2 is labelled while it is free"):
        pool.label(2, 0, b"x")
    with pytest.raises(AssertionError, match="null page and one more"):
        PagePool(1, (1,))


def test_a_block_whose_content_is_wrong_is_free_without_it() -> None:
    pool = PagePool(3, (2, 1))
    assert pool.allocate(4, 0) == [2, 3, 4, 5]
    for block in (2, 3, 4):
        pool.label(block, 0, b"%d" % block)
    for block in (2, 3, 4):
        pool.release(block, 0)
    pool.label(5, 0, b"5")
    pool.unlabel(5, 0)  # it is held, and no more than that
    assert pool.find(0, b"5") is None
    pool.unlabel(4, 0)  # its page still holds block 5
    assert pool.find(0, b"4") is None
    pool.unlabel(2, 0)  # its page keeps the content of block 3
    assert (pool.find(0, b"2"), pool.find(0, b"3")) == (None, 3)
    pool.unlabel(3, 0)
    pool.unlabel(3, 0)  # there is nothing left to remove
    assert pool.find(0, b"3") is None
    assert pool.allocate(0, 1) == [1], "the page is empty, and serves another group"
