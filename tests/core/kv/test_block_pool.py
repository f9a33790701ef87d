"""The block pool: reference counts, the order of reuse, the index."""

import pytest

from octavo.core.kv.block_pool import NULL_BLOCK, BlockPool


def full_pool(num_blocks: int = 5) -> tuple[BlockPool, list[int]]:
    """Return a pool with no free block, and its blocks."""
    pool = BlockPool(num_blocks)
    blocks = pool.allocate(num_blocks - 1)
    assert blocks is not None
    return pool, blocks


def test_a_pool_needs_a_block_besides_the_null_block() -> None:
    assert BlockPool(2).num_free == 1
    with pytest.raises(AssertionError, match="null block and one more"):
        BlockPool(1)


def test_the_null_block_is_never_allocated() -> None:
    pool, blocks = full_pool()
    assert blocks == [1, 2, 3, 4]
    assert NULL_BLOCK not in blocks
    assert pool.num_free == 0


def test_an_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(5)
    assert pool.allocate(5) is None
    assert pool.num_free == 4
    assert pool.allocate(3) == [1, 2, 3]
    assert pool.allocate(2) is None
    assert pool.allocate(1) == [4]
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []


def test_a_block_is_free_when_its_last_holder_releases_it() -> None:
    pool, _ = full_pool()
    pool.acquire(2)
    pool.release(2)
    assert pool.num_free == 0
    pool.release(2)
    assert (pool.num_free, pool.free_blocks()) == (1, [2])


def test_releasing_a_free_block_is_an_error() -> None:
    pool, _ = full_pool()
    pool.release(1)
    with pytest.raises(AssertionError, match="block 1 is released more often than acquired"):
        pool.release(1)


def test_blocks_without_a_label_are_reused_first_beginning_with_the_newest() -> None:
    """Blocks without a label cannot be shared, and the newest is likely to be in a CPU cache."""
    pool, _ = full_pool()
    pool.label(1, 0, b"one")
    pool.label(3, 0, b"three")
    for block in (1, 2, 3, 4):
        pool.release(block)
    assert pool.free_blocks() == [4, 2, 1, 3]
    assert pool.allocate(2) == [4, 2]
    assert pool.find(0, b"one") == 1


def test_labelled_blocks_are_reused_longest_unused_first() -> None:
    pool, _ = full_pool()
    for block in (1, 2, 3, 4):
        pool.label(block, 0, b"%d" % block)
    for block in (3, 1, 4, 2):
        pool.release(block)
    assert pool.free_blocks() == [3, 1, 4, 2]


def test_a_hit_removes_a_free_block_from_any_place_in_the_list() -> None:
    pool, _ = full_pool()
    for block in (1, 2, 3, 4):
        pool.label(block, 0, b"%d" % block)
        pool.release(block)
    for block, left in ((2, [1, 3, 4]), (4, [1, 3]), (1, [3]), (3, [])):
        pool.acquire(block)
        assert pool.free_blocks() == left
        assert pool.num_free == len(left)


def test_a_hit_makes_a_block_the_most_recently_used() -> None:
    pool, _ = full_pool()
    for block in (1, 2):
        pool.label(block, 0, b"%d" % block)
        pool.release(block)
    pool.acquire(1)
    pool.release(1)
    assert pool.free_blocks() == [2, 1]


def test_a_free_block_without_a_label_cannot_be_acquired() -> None:
    pool = BlockPool(3)
    with pytest.raises(AssertionError, match="block 1 is free and has no label"):
        pool.acquire(1)


def test_a_block_stays_in_the_index_until_it_is_allocated_again() -> None:
    pool, _ = full_pool(3)
    pool.label(1, 0, b"one")
    pool.release(1)
    assert pool.find(0, b"one") == 1
    assert pool.allocate(1) == [1]
    assert pool.find(0, b"one") is None
    assert pool.labels == [None, None, None]


def test_a_block_keeps_its_first_label() -> None:
    pool, _ = full_pool()
    pool.label(1, 0, b"one")
    pool.label(1, 0, b"two")
    assert (pool.find(0, b"one"), pool.find(0, b"two")) == (1, None)


def test_a_label_keeps_its_first_block() -> None:
    """The second of two equal blocks stays private and is reused first."""
    pool, _ = full_pool()
    pool.label(1, 0, b"one")
    pool.label(2, 0, b"one")
    assert pool.find(0, b"one") == 1
    assert pool.labels[2] is None


def test_each_group_has_its_own_index() -> None:
    pool = BlockPool(4, num_groups=2)
    pool.allocate(2)
    pool.label(1, 0, b"same")
    pool.label(2, 1, b"same")
    assert (pool.find(0, b"same"), pool.find(1, b"same")) == (1, 2)
    assert (pool.indexed(0), pool.indexed(1)) == ({b"same": 1}, {b"same": 2})


def test_a_free_block_cannot_be_labelled() -> None:
    with pytest.raises(AssertionError, match="block 1 is labelled while it is free"):
        BlockPool(3).label(1, 0, b"one")


def test_removing_a_label_twice_is_the_same_as_once() -> None:
    pool, _ = full_pool()
    pool.label(1, 0, b"one")
    pool.unlabel(1)
    pool.unlabel(1)
    assert pool.find(0, b"one") is None
    pool.release(2)
    pool.release(1)
    assert pool.free_blocks() == [1, 2]


def test_clearing_the_labels_keeps_the_reference_counts() -> None:
    pool, _ = full_pool(4)
    pool.label(1, 0, b"one")
    pool.label(2, 0, b"two")
    pool.release(2)
    pool.clear_labels()
    assert pool.indexed(0) == {}
    assert (pool.ref_counts, pool.free_blocks()) == ([0, 1, 0, 1], [2])
    pool.label(1, 0, b"other")
    assert pool.find(0, b"other") == 1


def test_a_broken_free_list_is_detected() -> None:
    pool = BlockPool(4)
    pool._previous[2] = 3
    with pytest.raises(AssertionError, match="the free list is broken at block 2"):
        pool.free_blocks()


def test_walking_a_circular_free_list_ends() -> None:
    pool = BlockPool(4)
    pool._next[2], pool._previous[1] = 1, 2  # 0 → 1 → 2 → 1 …
    assert len(pool.free_blocks()) == pool.num_blocks + 1
