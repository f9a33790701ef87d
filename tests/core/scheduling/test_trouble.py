"""Aborts, failures, pauses and failed allocations affect only their own request."""

import pytest

from octavo.core.kv.block_pool import BlockPool
from tests.core.make import Rig, expected_output, tokens


def idle(rig: Rig) -> bool:
    """Return whether no sequence lives and all blocks are free."""
    scheduler = rig.scheduler
    return not scheduler.sequences and scheduler.kv.pool.num_free == rig.config.num_blocks - 1


# abort


def test_aborting_an_unknown_or_finished_request_does_nothing() -> None:
    rig = Rig()
    assert rig.abort("unknown") is None
    rig.add("a", 5, max_tokens=1)
    rig.finish()
    assert rig.abort("a") is None


def test_a_waiting_request_is_aborted() -> None:
    rig = Rig()
    rig.add("a", 5, emitted=[7])
    event = rig.abort("a")
    assert event is not None
    assert (event.finish_reason, event.position, event.tokens) == ("abort", 1, ())
    assert idle(rig)
    assert rig.plan() is None


def test_a_follower_is_aborted() -> None:
    rig = Rig(long_prefill_tokens=8)
    rig.add("first", 17, max_tokens=1)
    rig.add("follower", 17)
    rig.step()
    assert rig.following == ["follower"]
    rig.abort("follower")
    assert (rig.following, rig.running) == ([], ["first"])
    rig.finish()
    assert rig.ends() == {"follower": "abort", "first": "length"}
    assert idle(rig)


@pytest.mark.parametrize("budget", [4, 64], ids=["in mid-prefill", "while decoding"])
def test_a_running_request_is_aborted_and_its_slot_announced(budget: int) -> None:
    rig = Rig(max_num_batched_tokens=budget)
    rig.add("a", 10)
    rig.step()
    event = rig.abort("a")
    assert event is not None
    assert event.position == len(rig.outputs()["a"])
    assert idle(rig)
    plan = rig.plan()
    assert plan is not None
    assert (plan.freed, plan.num_tokens) == ((0,), 0)


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("num_in_flight", [1, 2, 3])
def test_results_that_arrive_after_an_abort_are_ignored(depth: int, num_in_flight: int) -> None:
    rig = Rig(pipeline_depth=depth)
    rig.add("a", 5)
    rig.add("b", tokens(5, 2), max_tokens=9)
    for _ in range(min(depth, num_in_flight)):
        rig.plan()
    event = rig.abort("a")
    assert event is not None
    assert event.stats is not None
    assert event.stats.num_output_tokens == 0
    assert rig.finish() == {"a": [], "b": expected_output(tokens(5, 2), 9)}
    assert idle(rig)


def test_blocks_of_an_aborted_request_are_reused_while_its_step_is_in_flight() -> None:
    rig = Rig(num_blocks=5, pipeline_depth=2)
    rig.add("a", 9, max_tokens=2)
    rig.plan()
    rig.plan()
    rig.abort("a")
    rig.add("b", tokens(9, 2), max_tokens=6)
    assert rig.finish()["b"] == expected_output(tokens(9, 2), 6)


def test_an_id_can_be_reused_while_the_old_steps_are_in_flight() -> None:
    rig = Rig(pipeline_depth=3)
    rig.add("a", 5)
    rig.plan()
    rig.abort("a")
    rig.add("a", tokens(6, 2), max_tokens=4)
    rig.events.clear()
    assert rig.finish() == {"a": expected_output(tokens(6, 2), 4)}


# failures


@pytest.mark.parametrize("depth", [1, 2])
def test_a_failure_ends_one_request_and_removes_its_blocks_from_the_cache(depth: int) -> None:
    rig = Rig(pipeline_depth=depth)
    rig.add("bad", 9, max_tokens=8)
    rig.add("good", tokens(9, 2), max_tokens=8)
    rig.step()
    rig.step()
    rig.worker.failing.add("bad")
    assert rig.finish()["good"] == expected_output(tokens(9, 2), 8)
    assert rig.ends() == {"bad": "error", "good": "length"}
    assert rig.end_of("bad").message == "not a number"
    rig.worker.failing.clear()
    rig.add("again", 9, max_tokens=1)
    assert rig.chunks(rig.plan())["again"] == (0, 9)


def test_a_request_that_asks_for_the_impossible_leaves_its_blocks_in_the_cache() -> None:
    rig = Rig()
    rig.worker.failing_at["bad"] = 10
    rig.worker.impossible.add("bad")
    rig.add("bad", 9, max_tokens=8)
    rig.finish()
    assert rig.ends() == {"bad": "impossible"}
    rig.add("again", 9, max_tokens=1)
    assert rig.chunks(rig.plan())["again"] == (8, 1)


def test_a_failure_before_the_first_token_ends_the_request_at_its_start() -> None:
    rig = Rig()
    rig.worker.failing.add("bad")
    rig.add("bad", 9, emitted=[1, 2])
    rig.finish()
    assert (rig.end_of("bad").position, rig.end_of("bad").tokens) == (2, ())
    assert idle(rig)


# pause and reset


def test_a_pause_plans_nothing_new_and_applies_results() -> None:
    rig = Rig(pipeline_depth=2)
    rig.add("a", 5, max_tokens=4)
    rig.plan()
    rig.scheduler.pause(rig.now)
    assert rig.plan() is None
    assert len(rig.land()) == 1
    assert rig.plan() is None
    rig.scheduler.resume(rig.now)
    assert rig.finish() == {"a": expected_output(tokens(5), 4)}


def test_a_pause_still_announces_freed_slots() -> None:
    rig = Rig()
    rig.add("a", 5)
    rig.step()
    rig.scheduler.pause(rig.now)
    rig.abort("a")
    plan = rig.plan()
    assert plan is not None
    assert (plan.freed, plan.slots) == ((0,), ())


# failed allocations


class FailingPool(BlockPool):
    """A pool whose k-th allocation fails, even if blocks are free."""

    __slots__ = ("num_asked", "refused")

    def __init__(self, num_blocks: int, refused: int) -> None:
        super().__init__(num_blocks)
        self.num_asked = 0
        self.refused = refused

    def allocate(self, *counts: int) -> list[int] | None:
        self.num_asked += 1
        return None if self.num_asked == self.refused else super().allocate(*counts)


@pytest.mark.parametrize("refused", range(1, 19))
def test_a_failed_allocation_costs_time_and_nothing_else(refused: int) -> None:
    pool = FailingPool(12, refused)
    rig = Rig(num_blocks=12, pool=pool, pipeline_depth=2)
    rig.add("a", 9, max_tokens=9)
    rig.add("b", tokens(6, 2), max_tokens=9)
    rig.add("c", 9, max_tokens=9, parent_id="a")
    outputs = rig.finish()
    assert outputs["a"] == outputs["c"] == expected_output(tokens(9), 9)
    assert outputs["b"] == expected_output(tokens(6, 2), 9)
    assert idle(rig)


def test_a_sequence_that_runs_alone_waits_for_blocks_without_preemption() -> None:
    pool = FailingPool(12, 2)
    rig = Rig(num_blocks=12, pool=pool)
    rig.add("a", 4, max_tokens=3)
    rig.step()
    assert rig.plan() is None
    assert rig.running == ["a"]
    assert rig.finish() == {"a": expected_output(tokens(4), 3)}


def test_a_failure_after_a_reset_finds_nothing_to_remove_from_the_cache() -> None:
    """Neither earlier nor later blocks of a sequence are cached after a reset."""
    rig = Rig()
    rig.add("a", 9, max_tokens=4)
    rig.step()
    rig.scheduler.reset_prefix_cache()
    rig.worker.failing.add("a")
    rig.step()
    assert rig.ends() == {"a": "error"}
    assert idle(rig)
