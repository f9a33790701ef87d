"""The block pool: reference counts, the order of reuse, the index."""

import pytest

from octavo.core.block_pool import NULL_BLOCK, BlockPool


def full_pool(num_blocks: int = 5) -> tuple[BlockPool, list[int]]:
    """A pool all of whose blocks are held."""
    pool = BlockPool(num_blocks)
    blocks = pool.allocate(num_blocks - 1)
    assert blocks is not None
    return pool, blocks


def test_a_pool_needs_a_block_besides_the_null_block() -> None:
    assert BlockPool(2).num_free == 1
    with pytest.raises(AssertionError, match="null block and one more"):
        BlockPool(1)


def test_the_null_block_is_never_handed_out() -> None:
    pool, blocks = full_pool()
    assert blocks == [1, 2, 3, 4]
    assert NULL_BLOCK not in blocks
    assert pool.num_free == 0


def test_an_allocation_is_whole_or_nothing() -> None:
    pool = BlockPool(5)
    assert pool.allocate(5) is None
    assert pool.num_free == 4
    assert pool.allocate(3) == [1, 2, 3]
    assert pool.allocate(2) is None
    assert pool.allocate(1) == [4]
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []


def test_a_block_is_free_when_its_last_holder_lets_go() -> None:
    pool, _ = full_pool()
    pool.acquire(2)
    pool.release(2)
    assert pool.num_free == 0
    pool.release(2)
    assert (pool.num_free, pool.free_blocks()) == (1, [2])


def test_letting_go_of_what_nobody_holds_is_a_defect() -> None:
    pool, _ = full_pool()
    pool.release(1)
    with pytest.raises(AssertionError, match="block 1 is released more often than acquired"):
        pool.release(1)


def test_blocks_without_a_label_go_out_first_the_newest_ahead() -> None:
    """Nobody can want them, and the one written last is the likeliest to be in a fast cache."""
    pool, _ = full_pool()
    pool.label(1, 0, b"one")
    pool.label(3, 0, b"three")
    for block in (1, 2, 3, 4):
        pool.release(block)
    assert pool.free_blocks() == [4, 2, 1, 3]
    assert pool.allocate(2) == [4, 2]
    assert pool.find(0, b"one") == 1


def test_labelled_blocks_go_out_longest_unused_first() -> None:
    pool, _ = full_pool()
    for block in (1, 2, 3, 4):
        pool.label(block, 0, b"%d" % block)
    for block in (3, 1, 4, 2):
        pool.release(block)
    assert pool.free_blocks() == [3, 1, 4, 2]


def test_a_hit_takes_a_free_block_out_of_the_list_wherever_it_stands() -> None:
    pool, _ = full_pool()
    for block in (1, 2, 3, 4):
        pool.label(block, 0, b"%d" % block)
        pool.release(block)
    for block, left in ((2, [1, 3, 4]), (4, [1, 3]), (1, [3]), (3, [])):
        pool.acquire(block)
        assert pool.free_blocks() == left
        assert pool.num_free == len(left)


def test_a_hit_makes_a_block_the_newest_again() -> None:
    pool, _ = full_pool()
    for block in (1, 2):
        pool.label(block, 0, b"%d" % block)
        pool.release(block)
    pool.acquire(1)
    pool.release(1)
    assert pool.free_blocks() == [2, 1]


def test_only_a_labelled_block_can_be_hit_while_it_is_free() -> None:
    pool = BlockPool(3)
    with pytest.raises(AssertionError, match="block 1 is free and has no label"):
        pool.acquire(1)


def test_a_block_stays_in_the_index_until_it_is_handed_out_again() -> None:
    pool, _ = full_pool(3)
    pool.label(1, 0, b"one")
    pool.release(1)
    assert pool.find(0, b"one") == 1
    assert pool.allocate(1) == [1]
    assert pool.find(0, b"one") is None
    assert pool.labels == [None, None, None]


def test_a_block_keeps_its_first_name() -> None:
    pool, _ = full_pool()
    pool.label(1, 0, b"one")
    pool.label(1, 0, b"two")
    assert (pool.find(0, b"one"), pool.find(0, b"two")) == (1, None)


def test_a_content_keeps_its_first_block() -> None:
    """Two sequences computed the same: the second copy stays private and is reused first."""
    pool, _ = full_pool()
    pool.label(1, 0, b"one")
    pool.label(2, 0, b"one")
    assert pool.find(0, b"one") == 1
    assert pool.labels[2] is None


def test_groups_have_an_index_each() -> None:
    pool = BlockPool(4, num_groups=2)
    pool.allocate(2)
    pool.label(1, 0, b"same")
    pool.label(2, 1, b"same")
    assert (pool.find(0, b"same"), pool.find(1, b"same")) == (1, 2)
    assert (pool.indexed(0), pool.indexed(1)) == ({b"same": 1}, {b"same": 2})


def test_only_a_held_block_gets_a_label() -> None:
    with pytest.raises(AssertionError, match="block 1 is labelled while it is free"):
        BlockPool(3).label(1, 0, b"one")


def test_a_label_can_be_taken_back_once_or_twice() -> None:
    pool, _ = full_pool()
    pool.label(1, 0, b"one")
    pool.unlabel(1)
    pool.unlabel(1)
    assert pool.find(0, b"one") is None
    pool.release(2)
    pool.release(1)
    assert pool.free_blocks() == [1, 2]


def test_clearing_the_labels_keeps_who_holds_what() -> None:
    pool, _ = full_pool(4)
    pool.label(1, 0, b"one")
    pool.label(2, 0, b"two")
    pool.release(2)
    pool.clear_labels()
    assert pool.indexed(0) == {}
    assert (pool.ref_counts, pool.free_blocks()) == ([0, 1, 0, 1], [2])
    pool.label(1, 0, b"other")
    assert pool.find(0, b"other") == 1


def test_a_torn_list_is_noticed() -> None:
    pool = BlockPool(4)
    pool._previous[2] = 3
    with pytest.raises(AssertionError, match="the free list is broken at block 2"):
        pool.free_blocks()


def test_a_list_that_goes_in_a_circle_is_walked_only_for_so_long() -> None:
    pool = BlockPool(4)
    pool._next[2], pool._previous[1] = 1, 2  # 0 → 1 → 2 → 1 …
    assert len(pool.free_blocks()) == pool.num_blocks + 1
