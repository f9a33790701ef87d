"""The limiters, each on its own."""

from typing import Any

import pytest

from octavo.core import stats
from octavo.core.limits import (
    AdapterSlots,
    Limiter,
    LongPrefill,
    PrefillShare,
    PromptLogprobs,
    StageShare,
    StepTime,
    TokenBudget,
    WholePrompt,
    limiters_for,
)
from octavo.core.plan_draft import PlanDraft
from octavo.core.sequence import Sequence
from octavo.core.stats import EngineStats
from tests.core.make import a_line, config, request


def sequence(request_id: str = "a", prompt: int = 5, **fields: Any) -> Sequence:
    """Return a waiting sequence."""
    made = request(request_id, prompt, **fields)
    return Sequence(made, (0, 0.0, 0), made.max_total, 0.0, a_line())


def test_the_base_class_limits_nothing() -> None:
    limiter, one = Limiter(), sequence()
    limiter.begin(PlanDraft(), 0.0)
    assert limiter.refuse(one.request, 1000) is None
    assert limiter.admits(one)
    assert limiter.clip(one, 7) == 7
    limiter.commit(one, 7)
    limiter.leave(one)
    assert (limiter.reason, limiter.may_be_passed) == (stats.BUDGET, False)


def test_a_long_prefill_is_clipped() -> None:
    assert [LongPrefill(8).clip(sequence(), count) for count in (7, 8, 9, 1000)] == [7, 8, 8, 8]


def test_a_budget_is_used_up_and_renewed_each_step() -> None:
    budget, one = TokenBudget(10), sequence()
    assert (budget.clip(one, 4), budget.clip(one, 10), budget.clip(one, 11)) == (4, 10, 10)
    budget.commit(one, 7)
    assert (budget.clip(one, 4), budget.clip(one, 2)) == (3, 2)
    assert budget.admits(one)
    budget.commit(one, 3)
    assert budget.clip(one, 1) == 0
    assert not budget.admits(one)
    budget.begin(PlanDraft(), 0.0)
    assert budget.clip(one, 11) == 10


def stage_share(num_ready: int, num_drawn: int, **settings: int) -> list[int]:
    """Return what a step of stages gets of the sequences that decode, of which some are drawn."""
    share = StageShare(config(num_stages=2, **settings))
    running = [sequence(str(i)) for i in range(num_ready + num_drawn)]
    for number, each in enumerate(running):
        share.enter(each)
        each.catching_up = False
        each.num_expected += number >= num_ready
    share.begin(PlanDraft(), 0.0)
    planned = []
    for each in running:
        planned.append(share.clip(each, 1))
        if planned[-1]:
            share.commit(each, 1)
    return planned


def test_a_step_of_stages_has_its_share_of_the_sequences_that_decode() -> None:
    assert stage_share(5, 0, stage_sequences=2) == [1, 1, 1, 0, 0]
    assert stage_share(2, 3, stage_sequences=2) == [1, 1, 0, 0, 0]
    assert stage_share(5, 0, stage_sequences=3) == [1] * 5  # else a group would have two


def test_few_sequences_wait_for_more_that_are_drawn() -> None:
    assert stage_share(2, 2, stage_sequences=4) == [0] * 4
    assert stage_share(4, 12, stage_sequences=4) == [0] * 16  # groups become equal
    assert stage_share(3, 2, stage_sequences=8) == [1, 1, 1, 0, 0]


def test_a_step_of_stages_has_some_tokens_of_prompts() -> None:
    share, one = StageShare(config(num_stages=2, stage_sequences=2)), sequence(prompt=200)
    share.begin(PlanDraft(), 0.0)
    assert share.admits(one)
    assert share.clip(one, 200) == 64
    share.commit(one, 64)
    assert not share.admits(one)
    whole = StageShare(config(num_stages=2, chunked_prefill=False))
    whole.begin(PlanDraft(), 0.0)
    assert whole.clip(one, 200) == 200
    whole.commit(one, 200)
    assert whole.clip(one, 5) == 0


def test_drafts_let_a_step_of_stages_have_all() -> None:
    share, one, other = (
        StageShare(config(num_stages=2, stage_sequences=2)),
        sequence("a", 200),
        sequence("b"),
    )
    one.may_draft = True
    other.catching_up = False
    for each in (one, other):
        share.enter(each)
    share.begin(PlanDraft(), 0.0)
    assert (share.clip(one, 200), share.clip(other, 1)) == (200, 1)
    share.leave(one)
    share.begin(PlanDraft(), 0.0)
    assert share.clip(one, 200) == 64


def test_prompts_with_logprobs_share_a_budget() -> None:
    """Other prompts do not use it, nor do positions from a prompt's last token on."""
    limiter = PromptLogprobs(8)
    plain, reporting, more = sequence("p"), sequence("t", 20, prompt_logprobs=0), sequence("m", 6)
    assert (limiter.clip(reporting, 20), limiter.clip(plain, 20)) == (8, 20)
    reporting.num_planned = 7
    limiter.commit(reporting, 7)
    plain.num_planned = 5
    limiter.commit(plain, 5)
    assert (limiter.clip(reporting, 13), limiter.clip(more, 6)) == (1, 6)
    assert limiter.admits(reporting)
    reporting.num_planned = 8
    limiter.commit(reporting, 1)
    assert limiter.clip(reporting, 12) == 0
    assert [limiter.admits(each) for each in (reporting, plain)] == [False, True]
    assert limiter.may_be_passed
    reporting.num_planned = 19
    assert limiter.clip(reporting, 1) == 1  # the last token's row predicts no prompt token
    limiter.begin(PlanDraft(), 0.0)
    reporting.num_planned = 0
    assert limiter.clip(reporting, 20) == 8
    reporting.tokens.append(1)  # preempted after its first token, when all was reported
    assert limiter.clip(reporting, 21) == 21


def test_without_chunked_prefill_a_prompt_is_all_or_nothing() -> None:
    limiter, one = WholePrompt(8), sequence(prompt=5)
    assert [limiter.clip(one, count) for count in (4, 5)] == [0, 5]
    one.num_planned = 2
    assert [limiter.clip(one, count) for count in (2, 3)] == [0, 3]
    one.catching_up = False
    assert limiter.clip(one, 1) == 1


def test_without_chunked_prefill_prompt_and_output_must_fit_into_one_step() -> None:
    """A preempted sequence computes its output with the prompt, except for the last token."""
    limiter = WholePrompt(8)
    assert limiter.refuse(request("a", 5, max_tokens=4), 9) is None
    refusal = limiter.refuse(request("a", 5, max_tokens=5), 10)
    assert refusal is not None
    for number in ("prompt (5 tokens)", "max_tokens (5)", "max_num_batched_tokens=8"):
        assert number in refusal


def test_an_adapter_needs_an_engine_with_adapter_slots() -> None:
    assert AdapterSlots(0).refuse(request("a", 5), 21) is None
    assert AdapterSlots(1).refuse(request("a", 5, lora="x"), 21) is None
    refusal = AdapterSlots(0).refuse(request("a", 5, lora="x"), 21)
    assert refusal == "adapter 'x' is asked for, but max_loras=0: the engine runs without"


def test_an_adapter_returns_to_its_slot_unless_another_has_taken_it() -> None:
    slots = AdapterSlots(2)
    names = {"1": "x", "2": "y", "3": "y", "4": "x", "5": "z", "6": "x", "7": "z"}
    asks = {name: sequence(name, lora=lora) for name, lora in names.items()}

    def run(name: str) -> int:
        slots.enter(asks[name])
        return asks[name].adapter

    assert (run("1"), run("2"), run("3")) == (0, 1, 1)
    for name in ("2", "3", "1"):
        slots.leave(asks[name])
    assert run("4") == 0
    assert run("5") == 1  # y's, which is idle
    slots.leave(asks["4"])
    slots.leave(asks["5"])
    assert (run("6"), run("7")) == (0, 1)
    assert slots.slots == {"x": 0, "z": 1}


def test_an_adapter_keeps_its_slot_until_its_last_sequence_leaves() -> None:
    slots = AdapterSlots(1)
    first, second = sequence("1", lora="x"), sequence("2", lora="x")
    other, none = sequence("3", lora="y"), sequence("4")
    assert slots.admits(other)
    slots.enter(first)
    slots.enter(second)
    slots.enter(none)
    assert [slots.admits(each) for each in (first, other, none)] == [True, False, True]
    slots.leave(first)
    slots.leave(none)
    slots.leave(other)
    assert not slots.admits(other)
    slots.leave(second)
    assert slots.admits(other)
    slots.leave(second)
    assert slots.running == {}


@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({}, [PrefillShare, TokenBudget, AdapterSlots]),
        ({"long_prefill_tokens": 1}, [LongPrefill, PrefillShare, TokenBudget, AdapterSlots]),
        ({"prompt_logprob_tokens": 1}, [PrefillShare, TokenBudget, PromptLogprobs, AdapterSlots]),
        ({"chunked_prefill": False}, [TokenBudget, WholePrompt, AdapterSlots]),
        (
            {"chunked_prefill": False, "itl_ratio": 3.0},
            [TokenBudget, StepTime, WholePrompt, AdapterSlots],
        ),
        ({"itl_goal": 0.1}, [PrefillShare, TokenBudget, StepTime, AdapterSlots]),
    ],
)
def test_a_configuration_chooses_its_limiters(
    settings: dict[str, Any], kinds: list[type[Limiter]]
) -> None:
    assert [type(limiter) for limiter in limiters_for(config(**settings), EngineStats())] == kinds
