"""A sequence that lacks pages although it is alone starts again, alone and without sharing."""

from __future__ import annotations

from octavo.core.check import check_integrity
from octavo.core.config import KVGroup
from octavo.core.plan import NO_TOKEN, StepPlan, StepResult
from octavo.core.scheduler import Scheduler
from tests.core.make import KEY, config, request, tokens


def step(scheduler: Scheduler) -> StepPlan | None:
    plan = scheduler.schedule(1.0)
    if plan is not None:
        sampled = tuple(7 if samples else NO_TOKEN for samples in plan.samples)
        scheduler.apply(StepResult(plan.step, sampled), 1.0)
    return plan


def test_a_fragmented_pool_does_not_stop_the_only_sequence() -> None:
    groups = (KVGroup(block_bytes=1), KVGroup(block_bytes=4))
    scheduler = Scheduler(config(groups=groups, num_blocks=12), KEY)
    scheduler.add(request("one", tokens(8), max_tokens=8), 0.0)
    step(scheduler)
    pool = scheduler.kv.pool
    # As if the rest were pinned by blocks of the other group.
    pinned = pool.allocate(0, pool.num_free)
    assert pinned is not None
    step(scheduler)
    one = scheduler.sequences["one"]
    assert (one.is_exclusive, scheduler.running) == (True, [])
    for block in pinned:
        pool.release(block, 1)
    check_integrity(scheduler)

    scheduler.add(request("two", tokens(8), max_tokens=1), 0.0)
    plan = step(scheduler)
    assert plan is not None
    assert [new.request_id for new in plan.opened] == ["one"]
    assert [each.request_id for each in scheduler.running] == ["one"]
    assert one.stats.num_recached_tokens == 0
    step(scheduler)
    assert [each.request_id for each in scheduler.running] == ["one"], "no other starts beside it"
    while "one" in scheduler.sequences:
        check_integrity(scheduler)
        assert scheduler.running == [one], "no other runs beside it"
        step(scheduler)
    step(scheduler)
    assert not scheduler.sequences
