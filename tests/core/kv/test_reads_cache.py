"""Requests that must compute their whole prompt: their results need every position."""

from array import array

import pytest

from octavo.core.config import CoreConfig, KVGroup
from octavo.core.plan import NO_TOKEN, StepPlan, StepResult
from octavo.core.pooling import Pooling, PoolingKind
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler

PROMPT = array("i", range(20))


def ask(name: str, prompt_logprobs: int | None = None, parent: str | None = None) -> Request:
    """Return a request with the same prompt each time."""
    sampling = SamplingParams(max_tokens=40, prompt_logprobs=prompt_logprobs)
    return Request(name, PROMPT, sampling, 0.0, parent_id=parent, eos_token_ids=(9, 3))


def advance(scheduler: Scheduler) -> StepPlan:
    """Run one step in which every sample is token 1, and return its plan."""
    plan = scheduler.schedule(0.0)
    assert plan is not None
    tokens = tuple(1 if samples else NO_TOKEN for samples in plan.samples)
    scheduler.apply(StepResult(plan.step, tokens), 0.0)
    return plan


@pytest.mark.parametrize("groups", [(KVGroup(),), (KVGroup(), KVGroup(8))])
@pytest.mark.parametrize("parent", [None, "first"])
@pytest.mark.parametrize(("prompt_logprobs", "start"), [(None, 16), (0, 0)])
def test_prompt_logprobs_bypass_the_cache_and_the_parent(
    groups: tuple[KVGroup, ...], parent: str | None, prompt_logprobs: int | None, start: int
) -> None:
    scheduler = Scheduler(CoreConfig(64, 64, 4, groups), b"key")
    scheduler.add(ask("first"), 0.0)
    advance(scheduler)
    scheduler.add(ask("second", prompt_logprobs, parent), 0.0)
    plan = advance(scheduler)
    expected = 19 if parent and start else start  # a fork has its parent's partial block
    assert dict(zip(plan.slots, plan.starts, strict=True))[plan.opened[0].slot] == expected


def test_prompt_logprobs_do_not_wait_for_a_prefix_that_is_being_computed() -> None:
    scheduler = Scheduler(CoreConfig(64, 64, 4, max_num_batched_tokens=8), b"key")
    scheduler.add(ask("first"), 0.0)
    advance(scheduler)
    scheduler.add(ask("second", 0), 0.0)
    while len(scheduler.running) < 2:
        advance(scheduler)
        assert not scheduler.queue.held


@pytest.mark.parametrize(("pooling", "reads"), [("last", True), ("mean", False), ("cls", False)])
def test_an_embedding_of_more_than_the_last_token_bypasses_the_cache(
    pooling: PoolingKind, reads: bool
) -> None:
    request = Request("it", PROMPT, SamplingParams(pooling=Pooling(pooling)), 0.0)
    assert request.reads_cache == reads


def test_others_hit_the_blocks_of_a_request_with_prompt_logprobs() -> None:
    scheduler = Scheduler(CoreConfig(64, 64, 4), b"key")
    scheduler.add(ask("first", 0), 0.0)
    advance(scheduler)
    scheduler.add(ask("second"), 0.0)
    assert advance(scheduler).starts == (20, 16)


def test_a_new_slot_has_all_its_stop_ids() -> None:
    scheduler = Scheduler(CoreConfig(64, 64, 4), b"key")
    scheduler.add(ask("first"), 0.0)
    assert advance(scheduler).opened[0].stop_ids == (3, 9)
