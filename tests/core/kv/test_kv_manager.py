"""The verbs of the KV manager: match, adopt, grow, commit, release."""

from typing import Any

import pytest

from octavo.core.config import KVGroup
from octavo.core.kv.block_pool import NULL_BLOCK, BlockPool
from octavo.core.kv.manager import KVManager
from octavo.core.sequence import Sequence, Status
from tests.core.make import KEY, a_line, config, request, tokens

FULL, WINDOW = KVGroup(), KVGroup(window=6)
HYBRID = (FULL, WINDOW)


def manager(**settings: Any) -> KVManager:
    """Return a manager of 63 blocks of 4 tokens."""
    return KVManager(config(**settings), KEY)


def sequence(request_id: str, prompt: int | list[int], **fields: Any) -> Sequence:
    """Return a waiting sequence."""
    made = request(request_id, prompt, **fields)
    return Sequence(made, (0, 0.0, 0), made.max_total, 0.0, a_line())


def free_blocks(kv: KVManager) -> list[int]:
    """Return the free blocks in order of reuse."""
    assert isinstance(kv.pool, BlockPool)
    return kv.pool.free_blocks()


def begin(
    kv: KVManager, one: Sequence, parent: Sequence | None = None, end: int | None = None
) -> tuple[tuple[int, int, int], ...]:
    """Admit a sequence as the scheduler does; return the blocks to be copied."""
    copies = kv.adopt(one, kv.match(one, parent), end or len(one.tokens))
    assert copies is not None
    one.status = Status.RUNNING
    return copies


def compute(kv: KVManager, one: Sequence, end: int | None = None) -> None:
    """Apply the result of a chunk up to `end`."""
    one.num_computed = one.num_planned = end or len(one.tokens)
    if one.num_computed >= one.commit_at:
        kv.commit(one)


def computed(kv: KVManager, request_id: str, prompt: int | list[int], **fields: Any) -> Sequence:
    """Return a running sequence whose whole prompt is computed."""
    one = sequence(request_id, prompt, **fields)
    begin(kv, one)
    compute(kv, one)
    return one


# match: the cache


@pytest.mark.parametrize(("prompt", "hit"), [(7, 4), (8, 4), (9, 8), (11, 8), (12, 8), (13, 12)])
def test_whole_blocks_are_hit_and_one_token_is_left_to_compute(prompt: int, hit: int) -> None:
    kv = manager()
    first = computed(kv, "first", 16)
    prefix = kv.match(sequence("second", prompt))
    assert prefix.num_tokens == hit
    assert prefix.tables == (first.tables[0][: hit // 4],)


def test_a_hit_ends_where_the_tokens_differ() -> None:
    kv = manager()
    computed(kv, "first", tokens(16))
    other = tokens(16)
    other[9] += 1
    assert kv.match(sequence("second", other)).num_tokens == 8


def test_a_block_after_different_tokens_is_not_hit() -> None:
    """Hashes are chained: equal tokens in a block are not enough."""
    kv = manager()
    computed(kv, "first", tokens(8))
    assert kv.match(sequence("second", [9, *tokens(8)[1:], 5])).num_tokens == 0


def test_computed_blocks_are_shared_and_planned_ones_are_not() -> None:
    kv = manager()
    first = sequence("first", 16)
    begin(kv, first)
    first.num_planned = 16
    assert kv.match(sequence("second", 16)).num_tokens == 0
    compute(kv, first, 11)
    assert kv.match(sequence("second", 16)).num_tokens == 8


def test_a_released_prefix_is_still_hit_and_loses_its_tail_first() -> None:
    kv = manager(num_blocks=6)
    first = computed(kv, "first", 16)
    table = first.tables[0][:]
    kv.release(first)
    assert free_blocks(kv) == [5, *reversed(table)]
    assert kv.pool.allocate(2) is not None
    assert kv.match(sequence("second", 17)).num_tokens == 12


@pytest.mark.parametrize(
    "fields",
    [{"lora": "other"}, {"lora": None}, {"lora": "adapter", "cache_scope": "x"}, {"lora": ""}],
)
def test_another_scope_or_adapter_is_another_prefix(fields: dict[str, Any]) -> None:
    kv = manager(max_loras=2)
    computed(kv, "first", 8, lora="adapter")
    assert kv.match(sequence("same", 9, lora="adapter")).num_tokens == 8
    assert kv.match(sequence("other", 9, **fields)).num_tokens == 0


def test_scope_and_adapter_are_hashed_apart() -> None:
    """Scope "a+b" without an adapter is not scope "a" with adapter "b"."""
    kv = manager()
    computed(kv, "first", 8, cache_scope="a+b")
    assert kv.match(sequence("other", 9, cache_scope="a", lora="b")).num_tokens == 0


def test_names_may_contain_lone_surrogates() -> None:
    kv = manager()
    computed(kv, "first", 8, cache_scope="\udcff", lora="\udcff")
    same = sequence("same", 9, cache_scope="\udcff", lora="\udcff")
    assert kv.match(same).num_tokens == 8


def test_another_key_gives_other_digests() -> None:
    one, other = manager(), KVManager(config(), b"another key")
    digests = [computed(kv, "first", 8).digests for kv in (one, other)]
    assert digests[0] != digests[1]
    assert computed(manager(), "first", 8).digests == digests[0]


def test_without_prefix_caching_nothing_is_hit_or_committed() -> None:
    kv = manager(prefix_caching=False)
    first = computed(kv, "first", 16)
    assert kv.match(sequence("second", 16)) == (0, ([],), (), None, 0)
    assert (kv.pool.indexed(0), kv.upcoming, first.digests) == ({}, {}, [])


def test_a_reset_forgets_blocks_computed_before_it() -> None:
    kv = manager()
    first = computed(kv, "first", 9)
    kv.reset_cache()
    assert kv.match(sequence("second", 9)).num_tokens == 0
    first.tokens.extend(tokens(16)[9:])
    kv.grow(first, 16)
    compute(kv, first)
    assert kv.pool.indexed(0) == {}, "its KV belongs to before the reset, all of it"
    third = computed(kv, "third", 9)
    assert kv.match(sequence("fourth", 9)).tables[0] == third.tables[0][:2]


def test_a_sequence_that_waits_during_a_reset_is_hashed_again() -> None:
    kv = manager()
    waiting = sequence("waiting", 9)
    kv.match(waiting)
    before = waiting.digests[:]
    kv.reset_cache()
    kv.match(waiting)
    assert len(waiting.digests) == len(before) == 2
    assert waiting.digests != before


# match: prefixes that are being computed


def test_a_prefix_that_is_being_computed_has_a_source_and_a_target() -> None:
    kv = manager()
    first = sequence("first", 16)
    begin(kv, first)
    prefix = kv.match(sequence("second", 11))
    assert (prefix.num_tokens, prefix.source, prefix.target) == (0, first, 8)
    compute(kv, first, 4)
    prefix = kv.match(sequence("second", 16))
    assert (prefix.num_tokens, prefix.source, prefix.target) == (4, first, 12)


def test_the_target_ends_where_another_source_begins() -> None:
    kv = manager()
    first = sequence("first", 9)
    begin(kv, first)
    longer = sequence("longer", 17)
    begin(kv, longer)
    prefix = kv.match(sequence("second", 17))
    assert (prefix.source, prefix.target) == (first, 8)
    compute(kv, first, 8)
    prefix = kv.match(sequence("second", 17))
    assert (prefix.source, prefix.target) == (longer, 16)


def test_a_released_sequence_is_no_source() -> None:
    kv = manager()
    first = sequence("first", 16)
    begin(kv, first)
    kv.release(first)
    assert kv.upcoming == {}
    assert kv.match(sequence("second", 16)).source is None


def test_releasing_one_source_keeps_the_others() -> None:
    kv = manager()
    first, longer = sequence("first", 9), sequence("longer", 17)
    begin(kv, first)
    begin(kv, longer)
    compute(kv, longer, 8)
    kv.release(longer)
    assert list(kv.upcoming.values()) == [first, first]
    compute(kv, first, 8)
    assert kv.upcoming == {}


# match: forks


def test_a_fork_shares_full_blocks_and_copies_the_partial_one() -> None:
    kv = manager()
    parent = computed(kv, "parent", 10)
    fork = sequence("fork", [*tokens(10), 5])
    copies = begin(kv, fork, parent)
    assert fork.num_computed == 10
    assert fork.tables[0][:2] == parent.tables[0][:2]
    assert copies == ((parent.tables[0][2], fork.tables[0][2], 0),)
    assert kv.pool.ref_counts[parent.tables[0][2]] == 1, "held only for the copy"


def test_a_fork_of_the_same_prompt_computes_its_last_token_itself() -> None:
    kv = manager(prefix_caching=False)
    parent = computed(kv, "parent", 8)
    prefix = kv.match(sequence("fork", 8), parent)
    assert (prefix.num_tokens, prefix.tails) == (7, (parent.tables[0][1],))
    assert kv.match(sequence("fork", 9), parent).tails == ()


def test_a_fork_shares_its_parents_kv_while_the_tokens_are_equal() -> None:
    kv = manager(prefix_caching=False)
    parent = computed(kv, "parent", 12)
    for agree in range(12):
        other = [*tokens(agree), 5, 6, 7]
        assert kv.match(sequence("fork", other), parent).num_tokens == agree


def test_a_fork_uses_the_cache_if_its_prefix_is_longer() -> None:
    kv = manager()
    computed(kv, "first", 16)
    parent = sequence("parent", [*tokens(5), 9, 9])
    begin(kv, parent)
    compute(kv, parent, 4)
    assert kv.match(sequence("fork", 16), parent).num_tokens == 12


def test_a_fork_waits_for_a_parent_that_is_catching_up() -> None:
    kv = manager(prefix_caching=False)
    parent = sequence("parent", 12)
    begin(kv, parent)
    compute(kv, parent, 6)
    prefix = kv.match(sequence("fork", 12), parent)
    assert (prefix.num_tokens, prefix.source, prefix.target) == (6, parent, 11)
    parent.catching_up = False
    assert kv.match(sequence("fork", 12), parent).source is None


def test_a_fork_shares_nothing_with_a_parent_under_other_conditions() -> None:
    kv = manager(prefix_caching=False, max_loras=1)
    parent = computed(kv, "parent", 12)
    assert kv.match(sequence("fork", 12, lora="adapter"), parent).num_tokens == 0
    parent.status = Status.WAITING
    assert kv.match(sequence("fork", 12), parent).num_tokens == 0
    parent.status = Status.RUNNING
    assert kv.match(sequence("fork", 12), parent).num_tokens == 11
    kv.reset_cache()
    assert kv.match(sequence("fork", 12), parent).num_tokens == 0


def test_a_fork_shares_nothing_with_a_parent_in_another_scope() -> None:
    """A request that names a parent must not learn whether its prompt is the same."""
    for caching in (True, False):
        kv = manager(prefix_caching=caching)
        parent = computed(kv, "parent", 12, cache_scope="one")
        assert kv.match(sequence("fork", 12, cache_scope="two"), parent).num_tokens == 0
        assert kv.match(sequence("fork", 12, cache_scope="one"), parent).num_tokens == 11


def test_a_fork_of_a_windowed_parent_needs_the_whole_window() -> None:
    """The parent at 20 has released blocks that a query at 8 reads; at 18 it has them all."""
    kv = manager(prefix_caching=False, groups=HYBRID)
    parent = computed(kv, "parent", 20)
    kv.grow(parent, 21)
    assert parent.tables[1][:4] == [NULL_BLOCK] * 3 + [parent.tables[1][3]]
    assert kv.match(sequence("early", [*tokens(8), 5]), parent).num_tokens == 0
    prefix = kv.match(sequence("late", [*tokens(18), 5]), parent)
    assert prefix.num_tokens == 18
    assert prefix.tables[0] == parent.tables[0][:4]
    assert prefix.tables[1] == parent.tables[1][:4]
    assert prefix.tails == (parent.tables[0][4], parent.tables[1][4])


def test_a_fork_needs_the_partial_block_too() -> None:
    """A query at 7 with window 3 and blocks of 4 reads only block 1, which is copied."""
    kv = manager(prefix_caching=False, groups=(KVGroup(window=3),))
    parent = computed(kv, "parent", 20)
    kv.grow(parent, 21)
    assert kv.match(sequence("early", [*tokens(7), 5]), parent).num_tokens == 0
    assert kv.match(sequence("late", [*tokens(19), 5]), parent).num_tokens == 19


# grow


def test_a_table_grows_at_its_end_by_whole_blocks() -> None:
    kv = manager()
    one = sequence("one", 5)
    begin(kv, one)
    assert (one.tables, one.num_capacity) == (([1, 2],), 8)
    assert kv.grow(one, 8) == ()
    assert kv.grow(one, 9) == ((3,),)
    assert kv.grow(one, 17) == ((4, 5),)
    assert (one.tables, one.num_capacity) == (([1, 2, 3, 4, 5],), 20)


def test_a_failed_growth_changes_nothing() -> None:
    kv = manager(num_blocks=4)
    one = sequence("one", 5)
    begin(kv, one)
    assert kv.grow(one, 13) is None
    assert (one.tables, one.num_capacity, kv.pool.num_free) == (([1, 2],), 8, 1)


def test_all_groups_grow_or_none() -> None:
    kv = manager(num_blocks=6, groups=(FULL, FULL))
    one = sequence("one", 5)
    begin(kv, one)
    assert one.tables == ([1, 2], [3, 4])
    assert kv.grow(one, 9) is None
    assert one.tables == ([1, 2], [3, 4])


def test_a_failed_admission_releases_everything() -> None:
    kv = manager(num_blocks=6)
    parent = computed(kv, "parent", 10)
    fork = sequence("fork", [*tokens(10), *tokens(20, 5)])
    prefix = kv.match(fork, parent)
    assert kv.adopt(fork, prefix, 30) is None
    assert (fork.tables, fork.num_capacity, fork.num_computed, fork.num_planned) == ((), 0, 0, 0)
    assert kv.pool.ref_counts == [0, 1, 1, 1, 0, 0]
    assert kv.adopt(fork, prefix, 12) is not None


def test_blocks_out_of_the_window_are_released() -> None:
    """A query at 13 with window 6 reads from 8 on, so blocks 0 and 1 are released."""
    kv = manager(groups=HYBRID)
    one = computed(kv, "one", 13)
    full, windowed = (table[:] for table in one.tables)
    assert kv.grow(one, 14) == ()
    assert one.tables == (full, [NULL_BLOCK, NULL_BLOCK, *windowed[2:]])
    assert [kv.pool.ref_counts[block] for block in windowed] == [0, 0, 1, 1]
    assert kv.grow(one, 14) == (), "a second time there is nothing left to give"


def test_a_window_moves_with_results_and_not_with_plans() -> None:
    kv = manager(groups=(WINDOW,))
    one = sequence("one", 13)
    begin(kv, one)
    one.num_planned = 13
    kv.grow(one, 17)
    assert NULL_BLOCK not in one.tables[0]


# match with windows


def test_a_windowed_group_is_hit_where_its_window_is_complete() -> None:
    """The null block replaces blocks that the next query does not read."""
    kv = manager(groups=HYBRID)
    first = computed(kv, "first", 17)
    prefix = kv.match(sequence("second", 17))
    assert prefix.num_tokens == 16
    assert prefix.tables[0] == first.tables[0][:4]
    assert prefix.tables[1] == [NULL_BLOCK, NULL_BLOCK, *first.tables[1][2:4]]


def test_a_hit_is_as_long_as_every_group_allows() -> None:
    """A query at 16 needs block 3 of the window, which is missing; a query at 12 does not."""
    kv = manager(groups=HYBRID)
    first = computed(kv, "first", 17)
    kv.pool.unlabel(first.tables[1][3])
    prefix = kv.match(sequence("second", 17))
    assert prefix.num_tokens == 12
    assert prefix.tables == (first.tables[0][:3], [NULL_BLOCK, *first.tables[1][1:3]])
    kv.pool.unlabel(first.tables[0][0])
    assert kv.match(sequence("second", 17)).num_tokens == 0


def test_a_window_may_be_hit_after_a_gap() -> None:
    kv = manager(groups=(WINDOW,))
    first = computed(kv, "first", 17)
    kv.pool.unlabel(first.tables[0][0])
    prefix = kv.match(sequence("second", 17))
    assert prefix.tables == ([NULL_BLOCK, NULL_BLOCK, *first.tables[0][2:4]],)


# commit


def test_a_block_that_left_the_window_before_its_commit_is_skipped() -> None:
    kv = manager(groups=(WINDOW,))
    one = sequence("one", 17)
    begin(kv, one)
    one.num_computed = one.num_planned = 17
    kv.grow(one, 18)
    kv.commit(one)
    assert one.tables[0][:3] == [NULL_BLOCK] * 3
    assert list(kv.pool.indexed(0).values()) == one.tables[0][3:4]
    assert one.num_committed == 4


# fits


def test_fits_counts_new_blocks_and_shared_blocks_that_are_free() -> None:
    kv = manager(num_blocks=7)
    first = computed(kv, "first", 12)
    second = sequence("second", 20)
    assert kv.fits(second, kv.match(second), spare=1), "three blocks shared, two new, one spare"
    assert not kv.fits(second, kv.match(second), spare=2)
    kv.release(first)
    assert kv.fits(second, kv.match(second), spare=1), "three of the free ones are its own hits"
    assert not kv.fits(second, kv.match(second), spare=2)


def test_a_window_bounds_the_blocks_of_a_sequence() -> None:
    """Window 6 and steps of 8 take at most 13 positions, from mid-block on: 5 blocks of 4."""
    settings: dict[str, Any] = {"groups": (WINDOW,), "max_num_batched_tokens": 8}
    assert manager(**settings).peak_pages(1000) == 5
    assert manager(**settings).peak_pages(7) == 2
    assert manager(**settings, pipeline_depth=2).peak_pages(1000) == 5, "it waits if alone"
    assert manager(**settings, long_prefill_tokens=3).peak_pages(1000) == 3
    both = manager(groups=HYBRID, max_num_batched_tokens=8)
    assert both.peak_pages(1000) == 250 + 5
    assert both.fits(sequence("long", 200), both.match(sequence("long", 200)), spare=63 - 55)


# release


def test_blocks_of_all_groups_are_released_the_last_first() -> None:
    kv = manager(num_blocks=7, groups=(FULL, FULL))
    one = computed(kv, "one", 12)
    assert one.tables == ([1, 2, 3], [4, 5, 6])
    kv.release(one)
    assert free_blocks(kv) == [3, 6, 2, 5, 1, 4]
    assert not one.tables
    assert (one.num_capacity, one.num_committed) == (0, 0)


def test_a_shared_block_stays_in_use_by_its_other_holder() -> None:
    kv = manager()
    first = computed(kv, "first", 8)
    second = computed(kv, "second", 9)
    kv.release(first)
    assert [kv.pool.ref_counts[block] for block in second.tables[0]] == [1, 1, 1]


def test_forgotten_blocks_leave_the_cache() -> None:
    kv = manager(groups=HYBRID)
    one = computed(kv, "one", 17)
    kv.grow(one, 18)
    kv.release(one, forget=True)
    assert kv.match(sequence("again", 17)).num_tokens == 0
    assert kv.pool.num_free == 63


def test_what_a_window_lacks_is_no_more_than_it_has_at_once() -> None:
    """A prompt of 16 blocks has 3 of them at once; as far as it has these, it lacks none."""
    kv = manager(groups=(KVGroup(window=4),), max_num_batched_tokens=4)
    one = sequence("one", 64)
    assert kv.adopt(one, kv.match(one), 4) is not None
    assert kv.lacking_pages(one) == 2
    one.num_computed = one.num_planned = 4
    assert kv.grow(one, 8) is not None
    assert kv.lacking_pages(one) == 1
    dense = manager(max_num_batched_tokens=4)
    two = sequence("two", 64)
    assert dense.adopt(two, dense.match(two), 4) is not None
    assert dense.lacking_pages(two) == 15
    assert dense.grow(two, 64) is not None
    assert dense.lacking_pages(two) == 0
