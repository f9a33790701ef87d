"""The scheduler: what each step computes, in which order, within which limits."""

from typing import Any

import pytest

from octavo.core import stats
from octavo.core.admission import start
from octavo.core.kv.manager import Prefix
from octavo.core.plan import StepResult
from octavo.core.sequence import Sequence
from tests.core.make import Rig, counting, expected_output, tokens

# one sequence


@pytest.mark.parametrize("prompt", [3, 4, 5, 7, 8, 9, 15, 16, 17])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_prompts_around_a_block_border_have_the_right_output(prompt: int, depth: int) -> None:
    rig = Rig(pipeline_depth=depth)
    rig.add("a", prompt, max_tokens=9)
    assert rig.finish() == {"a": expected_output(tokens(prompt), 9)}
    assert rig.scheduler.kv.pool.num_free == 63


def test_a_long_prompt_is_computed_in_chunks_of_the_budget() -> None:
    rig = Rig(max_num_batched_tokens=4)
    rig.add("a", 10, max_tokens=2)
    plans = []
    while rig.scheduler.sequences:
        plans.append(rig.chunks(rig.plan()))
        rig.land()
    assert plans == [{"a": (0, 4)}, {"a": (4, 4)}, {"a": (8, 2)}, {"a": (10, 1)}]


def test_a_cap_on_long_prefills_leaves_room_for_others() -> None:
    rig = Rig(max_num_batched_tokens=10, long_prefill_tokens=6)
    rig.add("long", 20)
    rig.add("other", tokens(5, family=2))
    assert rig.chunks(rig.plan()) == {"long": (0, 6), "other": (0, 4)}
    rig.land()
    assert rig.chunks(rig.plan()) == {"long": (6, 6), "other": (4, 1)}


def test_running_sequences_are_planned_before_waiting_ones() -> None:
    rig = Rig(max_num_batched_tokens=8)
    rig.add("first", 6)
    rig.step()
    rig.add("second", tokens(9, family=2))
    assert rig.chunks(rig.plan()) == {"first": (6, 1), "second": (0, 7)}


def test_without_chunked_prefill_a_prompt_waits_for_budget_for_all_of_it() -> None:
    rig = Rig(max_num_batched_tokens=8, chunked_prefill=False)
    rig.add("first", 6, max_tokens=2)
    rig.add("second", tokens(6, family=2), max_tokens=2)
    assert rig.chunks(rig.plan()) == {"first": (0, 6)}
    assert rig.scheduler.stats.recent[-1].blocked_by == stats.BUDGET
    rig.land()
    assert rig.chunks(rig.plan()) == {"first": (6, 1), "second": (0, 6)}


def test_nothing_is_planned_after_the_last_token() -> None:
    rig = Rig(pipeline_depth=3)
    rig.add("a", 5, max_tokens=2)
    assert rig.chunks(rig.plan()) == {"a": (0, 5)}
    assert rig.chunks(rig.plan()) == {"a": (5, 1)}
    assert rig.plan() is None


def test_a_resumed_request_continues_after_its_emitted_tokens() -> None:
    whole = expected_output(tokens(7), 8)
    for depth in (1, 2):
        for count in range(1, 8):
            rig = Rig(pipeline_depth=depth)
            rig.add("a", 7, max_tokens=8, emitted=whole[:count])
            assert rig.finish()["a"][count:] == whole[count:]
            assert rig.events[0].position == count
            assert rig.end_of("a").stats is not None
            assert rig.end_of("a").stats.num_output_tokens == 8  # type: ignore[union-attr]


def test_a_stop_token_ends_a_sequence_with_steps_in_flight() -> None:
    for depth in (1, 2, 3):
        rig = Rig(model=counting, pipeline_depth=depth)
        rig.add("a", 5, max_tokens=20, stop_token_ids=(8,), eos_token_ids=(7,), min_tokens=3)
        assert rig.finish() == {"a": [5, 6, 7]}
        assert (rig.ends(), rig.end_of("a").stop_token) == ({"a": "stop"}, None)
        rig.add("b", 5, max_tokens=20, stop_token_ids=(8,), eos_token_ids=(7,), ignore_eos=True)
        assert rig.finish()["b"] == [5, 6, 7, 8]
        assert rig.end_of("b").stop_token == 8


def test_a_chunk_that_samples_nothing_can_have_a_payload() -> None:
    rig = Rig(max_num_batched_tokens=4)
    rig.worker.payloads["a"] = {"any": "thing"}
    rig.add("a", 6, max_tokens=2)
    rig.finish()
    assert [(len(event.tokens), event.payload) for event in rig.events] == [
        (count, {"any": "thing"}) for count in (0, 1, 1)
    ]


# order


def test_first_come_first_served() -> None:
    rig = Rig(max_num_seqs=1)
    for name, arrival in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
        rig.add(name, tokens(5, family=ord(name)), max_tokens=1, arrival=arrival)
    rig.finish()
    assert list(rig.ends()) == ["a", "b", "c"]


def test_the_more_urgent_request_goes_first() -> None:
    rig = Rig(max_num_seqs=1, policy="priority")
    for name, priority in (("c", 3), ("a", -1), ("b", 2)):
        rig.add(name, tokens(5, family=ord(name)), max_tokens=1, priority=priority)
    rig.finish()
    assert list(rig.ends()) == ["a", "b", "c"]


def test_with_ageing_a_long_wait_outweighs_priority() -> None:
    rig = Rig(max_num_seqs=1, policy="priority", ageing_seconds=2.0)
    for name, priority, arrival in (("urgent", 0, 5.0), ("old", 2, 0.0), ("new", 2, 4.0)):
        family = len(name)
        rig.add(name, tokens(5, family), max_tokens=1, priority=priority, arrival=arrival)
    rig.finish()
    assert list(rig.ends()) == ["old", "urgent", "new"]


def test_an_older_sequence_that_is_admitted_later_is_planned_first() -> None:
    rig = Rig(max_num_batched_tokens=4)
    rig.add("young", tokens(4, family=2), arrival=5.0)
    rig.step()
    rig.add("old", 4, arrival=1.0)
    rig.step()
    assert rig.running == ["old", "young"]
    assert list(rig.chunks(rig.plan())) == ["old", "young"]


# preemption for more urgent requests


def displacing(**settings: Any) -> Rig:
    """Return a rig in which two sequences run that are not urgent."""
    rig = Rig(policy="priority", **settings)
    rig.add("one", tokens(8, family=2), priority=5, max_tokens=8)
    rig.add("two", tokens(8, family=3), priority=6, max_tokens=8)
    rig.step()
    assert rig.running == ["one", "two"]
    return rig


def test_an_urgent_request_takes_the_slot_of_the_least_urgent() -> None:
    rig = displacing(max_num_seqs=2)
    rig.add("urgent", 8, priority=1, max_tokens=8)
    rig.step()
    assert (rig.running, rig.waiting) == (["urgent", "one"], ["two"])
    outputs = rig.finish()
    assert outputs["two"] == expected_output(tokens(8, family=3), 8)
    assert rig.scheduler.stats.num_preemptions == 1


def test_an_urgent_request_preempts_as_many_as_it_needs_blocks() -> None:
    rig = displacing(num_blocks=9)
    rig.add("urgent", 25, priority=1, max_tokens=8)
    rig.step()
    assert (rig.running, rig.waiting) == (["urgent"], ["one", "two"])
    rig.finish()


def test_an_equally_urgent_request_waits() -> None:
    rig = displacing(max_num_seqs=2)
    rig.add("equal", 8, priority=6)
    rig.step()
    assert (rig.running, rig.waiting) == (["one", "two"], ["equal"])


def test_an_urgent_request_preempts_nothing_if_there_is_room() -> None:
    rig = displacing()
    rig.add("urgent", 8, priority=1)
    rig.step()
    assert rig.running == ["urgent", "one", "two"]


def test_an_urgent_request_preempts_nothing_while_its_adapter_has_no_slot() -> None:
    rig = Rig(policy="priority", max_num_seqs=1, max_loras=1)
    rig.add("one", 8, priority=5, lora="x")
    rig.step()
    rig.add("urgent", 8, priority=1, lora="y")
    rig.step()
    assert (rig.running, rig.waiting) == (["one"], ["urgent"])


def test_an_urgent_request_hits_the_blocks_of_the_one_it_preempts() -> None:
    """An urgent request does not follow a less urgent one, which may have to wait itself."""
    rig = Rig(policy="priority", max_num_seqs=1, max_num_batched_tokens=4)
    rig.add("one", 12, priority=5, max_tokens=2)
    rig.step()
    rig.add("urgent", 12, priority=1, max_tokens=2)
    rig.step()
    assert (rig.running, rig.waiting) == (["urgent"], ["one"])
    rig.finish()
    assert list(rig.ends()) == ["urgent", "one"]
    timeline = rig.end_of("urgent").stats
    assert timeline is not None
    assert timeline.num_cached_tokens == 4


# preemption


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("caching", [True, False])
def test_when_blocks_run_out_the_last_is_preempted_and_all_outputs_are_right(
    depth: int, caching: bool
) -> None:
    rig = Rig(num_blocks=9, pipeline_depth=depth, prefix_caching=caching)
    for family in (1, 2, 3):
        rig.add(f"{family}", tokens(6, family), max_tokens=20)
    first_running = []
    while rig.scheduler.sequences:
        rig.step()
        first_running += rig.running[:1]
    assert rig.outputs() == {f"{f}": expected_output(tokens(6, f), 20) for f in (1, 2, 3)}
    assert rig.scheduler.stats.num_preemptions > 0
    assert first_running == sorted(first_running), "the first is never preempted"
    first, *others = (rig.end_of(f"{family}").stats for family in (1, 2, 3))
    assert first is not None
    assert (first.num_preemptions, first.num_lost_tokens) == (0, 0)
    assert all(each and bool(each.num_lost_tokens) == bool(each.num_preemptions) for each in others)


def test_a_preempted_sequence_finds_most_of_its_kv_in_the_cache() -> None:
    rig = Rig(num_blocks=8, max_num_seqs=2)
    rig.add("first", tokens(8, 1), max_tokens=9)
    rig.add("second", tokens(8, 2), max_tokens=9)
    rig.finish()
    timeline = rig.end_of("second").stats
    assert timeline is not None
    assert timeline.num_preemptions > 0
    assert (timeline.num_cached_tokens, timeline.num_recached_tokens % 4) == (0, 0)
    assert 0 < timeline.num_recached_tokens <= timeline.num_lost_tokens
    assert rig.scheduler.stats.num_cached_tokens == timeline.num_recached_tokens


def test_drafts_are_given_up_before_a_sequence_is_preempted() -> None:
    """Position 7 is in a block that "a" has; its three drafts would need another one."""
    rig = Rig(num_blocks=4, max_drafts=3, drafter=lambda known: (0, 0, 0))
    rig.add("a", 7, max_tokens=6)
    rig.add("b", tokens(3, 2), max_tokens=2)
    rig.step()
    assert rig.scheduler.kv.pool.num_free == 0
    assert rig.chunks(rig.plan()) == {"a": (7, 1), "b": (3, 1)}
    assert rig.scheduler.stats.num_preemptions == 0


def test_an_admission_leaves_a_share_of_the_blocks_free() -> None:
    rig = Rig(num_blocks=20, watermark=0.5, prefix_caching=False)
    rig.add("a", 20)
    rig.add("b", 20)
    rig.step()
    assert (rig.running, rig.waiting) == (["a"], ["b"])
    assert rig.scheduler.stats.recent[-1].blocked_by == stats.BLOCKS
    rig.abort("a")
    rig.step()
    assert rig.running == ["b"], "a sequence that is alone may use all blocks"


# adapters


def test_a_request_whose_adapter_has_no_slot_is_overtaken() -> None:
    rig = Rig(max_loras=1)
    for name, lora in (("x1", "x"), ("y", "y"), ("x2", "x"), ("none", None)):
        rig.add(name, 5, lora=lora, max_tokens=3, cache_scope=name)
    rig.step()
    assert (rig.running, rig.waiting) == (["x1", "x2", "none"], ["y"])
    assert rig.scheduler.stats.recent[-1].blocked_by == stats.ADAPTERS
    rig.finish()
    timeline = rig.end_of("y").stats
    assert timeline is not None
    assert timeline.wait_seconds == {stats.TURN: 1.0, stats.ADAPTERS: 3.0}


def test_only_so_many_sequences_behind_the_head_are_examined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start, "MAX_PASSED_OVER", 2)
    rig = Rig(max_loras=1)
    for name, lora in (("x", "x"), ("1", "y"), ("2", "y"), ("3", "y"), ("late", "x")):
        rig.add(name, 5, lora=lora, cache_scope=name)
    rig.step()
    assert rig.running == ["x"]
    rig.abort("2")
    rig.step()
    assert rig.running == ["x", "late"]


@pytest.mark.parametrize(("most", "place"), [(3, 4), (1000, 12)])
def test_the_head_is_overtaken_only_so_many_times(
    most: int, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sequences of the running adapter finish at the bound, and the head gets its slot."""
    monkeypatch.setattr(start, "MAX_OVERTAKEN", most)
    rig = Rig(max_loras=1, max_num_seqs=2)
    rig.add("x", 5, lora="x", max_tokens=3, cache_scope="x")  # so that one always runs
    rig.add("y", 5, lora="y", max_tokens=2)
    for number in range(11):
        rig.add(f"x{number}", 5, lora="x", max_tokens=6, cache_scope=f"{number}")
    rig.finish()
    begun = {name: rig.end_of(name).stats for name in rig.ends()}
    before_y = [each for each in begun.values() if _began(each) < _began(begun["y"])]
    assert len(before_y) == place


def _began(timeline: stats.RequestStats | None) -> float:
    assert timeline is not None
    assert timeline.first_planned_at is not None
    return timeline.first_planned_at


def test_a_head_that_lacks_blocks_is_not_matched_again_until_enough_are_free() -> None:
    """Matching a long prompt takes time, which is wasted while too few blocks are free."""
    rig = Rig(num_blocks=8, block_size=4)
    rig.add("a", 12, max_tokens=8)
    rig.add("big", tokens(20, 2), max_tokens=2)
    match, examined = rig.scheduler.kv.match, []

    def observed(
        sequence: Sequence, parent: Sequence | None = None, is_settled: bool = False
    ) -> Prefix:
        examined.append(sequence.request_id)
        return match(sequence, parent, is_settled)

    rig.scheduler.kv.match = observed  # type: ignore[method-assign]
    for _ in range(4):
        rig.step()
    assert (examined, rig.waiting) == (["a", "big"], ["big"])
    rig.finish()
    assert examined == ["a", "big", "big"]


def test_a_head_that_lacks_blocks_is_not_overtaken() -> None:
    rig = Rig(num_blocks=8, prefix_caching=False)
    rig.add("a", 16, max_tokens=8)
    rig.add("big", 20, max_tokens=2)
    rig.add("small", 2, max_tokens=2)
    rig.step()
    assert (rig.running, rig.waiting) == (["a"], ["big", "small"])


# slots


def test_a_slot_is_announced_as_freed_once_and_before_its_reuse() -> None:
    """The worker fails if a slot is opened before it is freed, or freed twice."""
    rig = Rig(max_num_seqs=1, pipeline_depth=2)
    for name in "abc":
        rig.add(name, 5, max_tokens=2)
    rig.finish()
    opened = [slot.slot for plan in rig.plans for slot in plan.opened]
    freed = [slot for plan in rig.plans for slot in plan.freed]
    assert opened == [0, 0, 0]
    assert freed == [0, 0]
    plan = rig.plan()
    assert plan is not None
    assert (plan.freed, plan.slots) == ((0,), ())
    rig.land()
    assert rig.plan() is None
    assert rig.worker.rows == {}


# results that violate the protocol


def test_results_must_come_in_order_and_answer_every_chunk() -> None:
    rig = Rig()
    rig.add("a", 5)
    rig.plan()
    with pytest.raises(AssertionError, match="result 7 came out of order"):
        rig.scheduler.apply(StepResult(7, (1,)), 0.0)
    rig = Rig()
    rig.add("a", 5)
    rig.plan()
    with pytest.raises(AssertionError, match="must answer every chunk"):
        rig.scheduler.apply(StepResult(0, ()), 0.0)


def test_a_decoding_sequence_must_get_a_token() -> None:
    rig = Rig()
    rig.add("a", 5)
    rig.step()
    rig.plan()
    with pytest.raises(AssertionError, match="slot 0 should have sampled a token"):
        rig.scheduler.apply(StepResult(1, (-1,)), 0.0)


def test_only_so_many_tokens_are_examined_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hashing and copying prompts takes time, so a step bounds it."""
    monkeypatch.setattr(start, "MAX_EXAMINED_TOKENS", 10)
    rig = Rig()
    for number, name in enumerate("abc"):
        rig.add(name, tokens(8, number), max_tokens=4)
    rig.step()
    assert (rig.running, rig.waiting) == (["a", "b"], ["c"])
    rig.step()
    assert rig.running == ["a", "b", "c"]


# preemption for more urgent requests, under pressure


def test_nothing_is_preempted_for_a_request_that_would_not_fit_even_then() -> None:
    """The most urgent request keeps its blocks, and those of the other do not suffice."""
    rig = Rig(num_blocks=12, policy="priority", prefix_caching=False)
    rig.add("top", 24, priority=-2, max_tokens=8)
    rig.add("low", tokens(8, 2), priority=2, max_tokens=8)
    rig.step()
    rig.add("middle", tokens(24, 3), priority=0, max_tokens=4)
    for _ in range(3):
        rig.step()
    assert (rig.running, rig.waiting) == (["top", "low"], ["middle"])


def test_an_admission_leaves_the_blocks_that_running_prompts_still_lack() -> None:
    """Two long prompts that fit only one at a time are not started together and preempted."""
    rig = Rig(num_blocks=16, long_prefill_tokens=8, prefix_caching=False)
    rig.add("a", 40, max_tokens=2)
    rig.add("b", tokens(40, 2), max_tokens=2)
    rig.step()
    assert (rig.running, rig.waiting) == (["a"], ["b"])
    rig.finish()
    assert rig.scheduler.stats.num_preemptions == 0


def test_an_urgent_request_gets_tokens_before_a_long_prompt_that_uses_every_step() -> None:
    """Slots and blocks are free; only the budget of the step is contended."""
    rig = Rig(policy="priority", max_num_batched_tokens=8, num_blocks=64)
    rig.add("low", 60, priority=2, max_tokens=2)
    rig.step()
    rig.add("urgent", tokens(3, 2), priority=0, max_tokens=2)
    plan = rig.plan()
    assert rig.chunks(plan) == {"urgent": (0, 3), "low": (8, 5)}
    rig.land()
    rig.finish()
    assert list(rig.ends()) == ["urgent", "low"]


def test_an_urgent_request_does_not_follow_a_less_urgent_one() -> None:
    """A less urgent source may compute the shared prefix slowly, or be preempted."""
    rig = Rig(policy="priority", max_num_batched_tokens=8)
    rig.add("low", 60, priority=2, max_tokens=2)
    rig.step()
    rig.add("urgent", 24, priority=0, max_tokens=2)
    rig.step()
    assert (rig.following, rig.running) == ([], ["urgent", "low"])
    rig.finish()


def test_an_urgent_request_follows_an_earlier_one_and_preempts_nothing() -> None:
    rig = Rig(policy="priority", max_num_seqs=2, long_prefill_tokens=8)
    rig.add("leader", 32, priority=0, max_tokens=2)
    rig.step()
    rig.add("low", tokens(4, 2), priority=2, max_tokens=9)
    rig.step()
    rig.add("follower", 32, priority=0, max_tokens=2)
    rig.step()
    assert (rig.running, rig.waiting, rig.following) == (["leader", "low"], ["follower"], [])
    rig.finish()
    follower = rig.end_of("follower").stats
    assert follower is not None
    assert follower.num_cached_tokens == 28


def test_after_an_urgent_admission_the_last_running_sequence_is_preempted() -> None:
    """Two sequences must grow; the later one gives its blocks to the earlier one."""
    rig = Rig(policy="priority", num_blocks=8, prefix_caching=False)
    rig.add("a", 8, priority=2, max_tokens=4)
    rig.add("b", tokens(8, 2), priority=2, max_tokens=4)
    rig.step()
    rig.add("urgent", tokens(12, 3), priority=0, max_tokens=2)
    rig.step()
    assert (rig.running, rig.waiting) == (["urgent", "a"], ["b"])
    rig.finish()
