"""Sharing seen from the scheduler: prefix hits, followers, forks, windows, resets."""

from typing import Any

import pytest

from octavo.core.config import KVGroup
from octavo.core.kv.manager import KVManager
from octavo.core.plan import StepPlan
from octavo.core.request import EncoderInput
from octavo.core.sequence import Sequence, Status
from octavo.core.stats import PREFIX, RequestStats
from tests.core.make import KEY, Rig, a_line, config, expected_output, request, tokens

HYBRID = (KVGroup(), KVGroup(window=6))


def timeline(rig: Rig, request_id: str) -> RequestStats:
    """Return the statistics in a request's last event."""
    stats = rig.end_of(request_id).stats
    assert stats is not None
    return stats


def planned(rig: Rig) -> StepPlan:
    """Return the next plan, which must not be empty."""
    plan = rig.plan()
    assert plan is not None
    return plan


# prefix hits


@pytest.mark.parametrize("prompt", [7, 8, 9, 15, 16, 17])
def test_a_cached_prompt_is_computed_from_its_last_whole_block_on(prompt: int) -> None:
    rig = Rig()
    rig.add("first", prompt, max_tokens=3)
    rig.finish()
    rig.add("second", prompt, max_tokens=3)
    cached = (prompt - 1) // 4 * 4
    assert rig.chunks(rig.plan()) == {"second": (cached, prompt - cached)}
    rig.land()
    outputs = rig.finish()
    assert outputs["first"] == outputs["second"]
    assert timeline(rig, "second").num_cached_tokens == cached


def test_the_next_turn_of_a_conversation_reuses_the_last_one() -> None:
    rig = Rig()
    rig.add("turn", 6, max_tokens=7)
    answer = rig.finish()["turn"]
    rig.add("next", [*tokens(6), *answer, 1, 2], max_tokens=2)
    assert rig.chunks(rig.plan()) == {"next": (12, 3)}


def test_cache_scopes_share_nothing() -> None:
    rig = Rig()
    rig.add("first", 9, max_tokens=1, cache_scope="one")
    rig.finish()
    rig.add("second", 9, max_tokens=1, cache_scope="two")
    assert rig.chunks(rig.plan()) == {"second": (0, 9)}


# followers


def test_equal_prompts_that_arrive_together_are_computed_once() -> None:
    rig = Rig(long_prefill_tokens=8)
    rig.add("first", 17, max_tokens=2)
    rig.add("second", 17, max_tokens=2)
    assert rig.chunks(rig.plan()) == {"first": (0, 8)}
    assert rig.following == ["second"]
    rig.land()
    rig.step()
    assert rig.following == [], "the whole common prefix of 16 is there"
    assert rig.chunks(rig.plan()) == {"first": (16, 1), "second": (16, 1)}
    rig.land()
    outputs = rig.finish()
    assert outputs["first"] == outputs["second"]
    assert timeline(rig, "second").wait_seconds[PREFIX] == 1.0


def test_a_follower_returns_to_the_queue_when_its_source_is_aborted() -> None:
    rig = Rig(long_prefill_tokens=8)
    rig.add("first", 17)
    rig.add("second", 17, max_tokens=2)
    rig.step()
    assert rig.following == ["second"]
    rig.abort("first")
    assert (rig.following, rig.waiting) == ([], ["second"])
    assert rig.chunks(rig.plan()) == {"second": (8, 8)}


def test_a_follower_returns_to_the_queue_when_its_source_is_preempted() -> None:
    rig = Rig(long_prefill_tokens=8, max_num_seqs=2, policy="priority")
    rig.add("first", 33, priority=5, max_tokens=2)
    rig.add("second", 33, priority=6, max_tokens=2)
    rig.step()
    assert (rig.running, rig.following) == (["first"], ["second"])
    rig.add("urgent", tokens(9, 2), priority=1)
    rig.add("urgent too", tokens(9, 3), priority=1)
    rig.step()
    assert rig.running == ["urgent", "urgent too"]
    assert (rig.following, rig.waiting) == ([], ["first", "second"])
    outputs = rig.finish()
    assert outputs["first"] == outputs["second"] == expected_output(tokens(33), 2)


def test_an_aborted_follower_is_not_returned_to_the_queue() -> None:
    rig = Rig(long_prefill_tokens=8)
    rig.add("first", 17, max_tokens=2)
    rig.add("second", 17, max_tokens=2)
    rig.step()
    rig.abort("second")
    assert list(rig.finish()) == ["second", "first"]


def test_a_follower_of_a_shorter_prefix_is_released_earlier() -> None:
    rig = Rig(long_prefill_tokens=8)
    rig.add("first", 25, max_tokens=2)
    rig.add("short", [*tokens(8), 1], max_tokens=2)
    rig.add("long", 25, max_tokens=2)
    rig.step()
    assert (rig.following, rig.waiting) == (["long"], ["short"])


# forks


def test_forks_share_full_blocks_and_copy_the_partial_one() -> None:
    rig = Rig(prefix_caching=False)
    rig.add("parent", 10, max_tokens=4)
    rig.add("one", [*tokens(10), 1], parent_id="parent", max_tokens=4)
    rig.add("two", [*tokens(10), 2], parent_id="parent", max_tokens=4)
    assert list(rig.chunks(rig.plan())) == ["parent"]
    assert rig.following == ["one", "two"], "until the parent has computed what they share"
    rig.land()
    plan = planned(rig)
    assert rig.chunks(plan) == {"parent": (10, 1), "one": (10, 1), "two": (10, 1)}
    table = rig.scheduler.sequences["parent"].tables[0]
    opened = {new.request_id: new.tables[0] for new in plan.opened}
    assert opened["one"][:2] == opened["two"][:2] == tuple(table[:2])
    assert plan.copies == (
        (table[2], opened["one"][2], 0),
        (table[2], opened["two"][2], 0),
    )
    rig.land()
    outputs = rig.finish()
    assert outputs["two"] == expected_output([*tokens(10), 2], 4)
    assert timeline(rig, "one").num_cached_tokens == 10


def test_a_fork_of_a_finished_parent_computes_what_is_not_cached() -> None:
    for caching, start in ((True, 8), (False, 0)):
        rig = Rig(prefix_caching=caching)
        rig.add("parent", 10, max_tokens=1)
        rig.finish()
        rig.add("fork", 10, parent_id="parent", max_tokens=2)
        assert rig.chunks(rig.plan()) == {"fork": (start, 10 - start)}


def test_a_fork_whose_parent_ends_while_it_waits_runs_alone() -> None:
    rig = Rig(prefix_caching=False)
    rig.add("parent", 10, max_tokens=1)
    rig.add("fork", 10, parent_id="parent", max_tokens=2)
    rig.step()
    assert (rig.following, rig.ends()) == ([], {"parent": "length"})
    assert rig.chunks(rig.plan()) == {"fork": (0, 10)}


def test_a_fork_of_a_decoding_parent_shares_generated_tokens_too() -> None:
    rig = Rig(prefix_caching=False)
    rig.add("parent", 6, max_tokens=12)
    for _ in range(6):
        rig.step()
    answer = rig.outputs()["parent"]
    rig.add("fork", [*tokens(6), *answer, 1], parent_id="parent", max_tokens=3)
    chunks = rig.chunks(rig.plan())
    assert chunks["fork"] == (11, 2), "the parent's newest token is known and not computed"
    rig.land()
    assert rig.finish()["fork"] == expected_output([*tokens(6), *answer, 1], 3)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_many_forks_in_a_small_pool_have_the_right_output(depth: int) -> None:
    rig = Rig(num_blocks=10, pipeline_depth=depth)
    rig.add("0", 9, max_tokens=12)
    for number in range(1, 5):
        rig.add(str(number), [*tokens(9), number], parent_id="0", max_tokens=12)
    outputs = rig.finish()
    assert outputs["0"] == expected_output(tokens(9), 12)
    for number in range(1, 5):
        assert outputs[str(number)] == expected_output([*tokens(9), number], 12)
    assert rig.scheduler.stats.num_preemptions > 0
    assert rig.scheduler.kv.pool.num_free == 9


# windows


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("groups", [HYBRID, (KVGroup(window=3),), (KVGroup(window=4), KVGroup())])
def test_windowed_layers_have_the_right_output_and_hold_only_their_window(
    groups: tuple[KVGroup, ...], depth: int
) -> None:
    rig = Rig(groups=groups, pipeline_depth=depth, max_num_batched_tokens=6)
    rig.add("a", 21, max_tokens=20)
    rig.add("b", 21, max_tokens=20)
    most = 0
    while rig.scheduler.sequences:
        rig.step()
        most = max(most, 63 - rig.scheduler.kv.pool.num_free)
    assert rig.outputs()["a"] == rig.outputs()["b"] == expected_output(tokens(21), 20)
    assert most <= 2 * rig.scheduler.kv.peak_pages(40)
    assert rig.scheduler.kv.pool.num_free == 63


def test_a_hit_of_a_windowed_prefix_has_null_blocks_outside_the_window() -> None:
    rig = Rig(groups=HYBRID)
    rig.add("first", 17, max_tokens=1)
    rig.finish()
    rig.add("second", 17, max_tokens=2)
    plan = planned(rig)
    assert rig.chunks(plan) == {"second": (16, 1)}
    full, windowed = plan.opened[0].tables
    assert 0 not in full
    assert windowed[:2] == (0, 0)
    assert 0 not in windowed[2:]
    rig.land()
    assert rig.finish()["second"] == expected_output(tokens(17), 2)


def test_a_fork_before_its_parents_window_computes_its_own_kv() -> None:
    rig = Rig(groups=HYBRID, prefix_caching=False)
    rig.add("parent", 8, max_tokens=30)
    for _ in range(12):
        rig.step()
    rig.add("early", [*tokens(8), 1], parent_id="parent", max_tokens=2)
    assert rig.chunks(rig.plan())["early"] == (0, 9)


# resets


def test_a_reset_while_running_shares_nothing_old_and_changes_no_output() -> None:
    rig = Rig(long_prefill_tokens=8)
    rig.add("first", 17, max_tokens=6)
    rig.step()
    rig.step()
    rig.scheduler.reset_prefix_cache()
    rig.add("second", 17, max_tokens=6)
    assert rig.chunks(rig.plan()) == {"first": (16, 1), "second": (0, 8)}
    rig.land()
    rig.add("third", 13, max_tokens=6)
    rig.plan()
    assert rig.following == ["third"], "blocks computed since then are shared again"
    rig.land()
    outputs = rig.finish()
    assert outputs["first"] == outputs["second"] == expected_output(tokens(17), 6)
    assert timeline(rig, "third").num_cached_tokens == 12


def test_a_follower_survives_a_reset() -> None:
    rig = Rig(long_prefill_tokens=8)
    rig.add("first", 17, max_tokens=2)
    rig.add("second", 17, max_tokens=2)
    rig.step()
    assert rig.following == ["second"]
    rig.scheduler.reset_prefix_cache()
    outputs = rig.finish()
    assert outputs["first"] == outputs["second"]
    assert timeline(rig, "second").num_cached_tokens == 0


# forks of requests with other inputs than tokens


def common_with_parent(kv: KVManager, parent: dict[str, Any], fork: dict[str, Any]) -> int:
    """Return how many tokens a fork takes from a parent that has computed the same 10 tokens."""
    sequences = []
    for name, fields in (("parent", parent), ("fork", fork)):
        made = request(name, [*tokens(10), 5], **fields)
        sequences.append(Sequence(made, (0, 0.0, 0), made.max_total, 0.0, a_line()))
    one, other = sequences
    assert kv.adopt(one, kv.match(one), 10) is not None
    one.status = Status.RUNNING
    one.num_computed = one.num_planned = 10
    return kv.match(other, one, is_settled=True).num_tokens


def test_a_fork_shares_what_comes_before_another_salt() -> None:
    salts: list[dict[str, Any]] = [
        {"salts": ((2, b"cat"),)},
        {"salts": ((2, b"cat"), (7, b"dog"))},
        {},
    ]
    wanted = {(0, 0): 10, (0, 1): 7, (1, 0): 7, (0, 2): 2, (2, 0): 2}
    for (parent, fork), num_tokens in wanted.items():
        kv = KVManager(config(prefix_caching=False), KEY)
        assert common_with_parent(kv, salts[parent], salts[fork]) == num_tokens


def test_a_fork_shares_nothing_with_another_encoder_input() -> None:
    inputs = [{"encoder": EncoderInput(6, digest)} for digest in (b"cat", b"dog")]
    for fork, num_tokens in ((0, 10), (1, 0)):
        kv = KVManager(config(groups=(KVGroup(), KVGroup(kind="cross"))), KEY)
        assert common_with_parent(kv, inputs[0], inputs[fork]) == num_tokens
