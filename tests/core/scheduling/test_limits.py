"""The limiters, each alone."""

from typing import Any

import pytest

from octavo.core import stats
from octavo.core.limits import (
    AdapterSlots,
    Limiter,
    LongPrefill,
    OneInFlight,
    PromptLogprobs,
    TokenBudget,
    WholePrompt,
    limiters_for,
)
from octavo.core.sequence import Sequence
from tests.core.make import config, request


def sequence(request_id: str = "a", prompt: int = 5, **fields: Any) -> Sequence:
    """A sequence that waits."""
    made = request(request_id, prompt, **fields)
    return Sequence(made, (0, 0.0, 0), made.max_total, 0.0)


def test_a_limiter_limits_nothing_by_itself() -> None:
    limiter, one = Limiter(), sequence()
    limiter.begin()
    assert limiter.refuse(one.request, 1000) is None
    assert limiter.admits(one)
    assert limiter.clip(one, 7) == 7
    limiter.commit(one, 7)
    limiter.leave(one)
    assert (limiter.reason, limiter.may_be_passed) == (stats.BUDGET, False)


def test_nothing_is_planned_behind_an_unknown_token_while_drafting() -> None:
    limiter, one = OneInFlight(), sequence()
    assert limiter.clip(one, 3) == 3
    one.num_expected += 1
    assert limiter.clip(one, 3) == 0


def test_a_long_prefill_is_cut() -> None:
    assert [LongPrefill(8).clip(sequence(), count) for count in (7, 8, 9, 1000)] == [7, 8, 8, 8]


def test_a_budget_is_spent_and_renewed_each_step() -> None:
    budget, one = TokenBudget(10), sequence()
    assert (budget.clip(one, 4), budget.clip(one, 10), budget.clip(one, 11)) == (4, 10, 10)
    budget.commit(one, 7)
    assert (budget.clip(one, 4), budget.clip(one, 2)) == (3, 2)
    assert budget.admits(one)
    budget.commit(one, 3)
    assert budget.clip(one, 1) == 0
    assert not budget.admits(one)
    budget.begin()
    assert budget.clip(one, 11) == 10


def test_prompts_that_are_told_of_share_a_budget_of_their_own() -> None:
    """Others do not touch it, nor what is behind a prompt's last token but one."""
    limiter = PromptLogprobs(8)
    plain, told, more = sequence("p"), sequence("t", 20, prompt_logprobs=0), sequence("m", 6)
    assert (limiter.clip(told, 20), limiter.clip(plain, 20)) == (8, 20)
    told.num_planned = 7
    limiter.commit(told, 7)
    plain.num_planned = 5
    limiter.commit(plain, 5)
    assert (limiter.clip(told, 13), limiter.clip(more, 6)) == (1, 6)
    assert limiter.admits(told)
    told.num_planned = 8
    limiter.commit(told, 1)
    assert limiter.clip(told, 12) == 0
    assert [limiter.admits(each) for each in (told, plain)] == [False, True]
    assert limiter.may_be_passed
    told.num_planned = 19
    assert limiter.clip(told, 1) == 1  # its row foretells no token of the prompt
    limiter.begin()
    told.num_planned = 0
    assert limiter.clip(told, 20) == 8
    told.tokens.append(1)  # it was preempted, and told of all with its first token
    assert limiter.clip(told, 21) == 21


def test_an_uncut_prompt_is_all_or_nothing() -> None:
    limiter, one = WholePrompt(8), sequence(prompt=5)
    assert [limiter.clip(one, count) for count in (4, 5)] == [0, 5]
    one.num_planned = 2
    assert [limiter.clip(one, count) for count in (2, 3)] == [0, 3]
    one.catching_up = False
    assert limiter.clip(one, 1) == 1


def test_a_prompt_that_may_not_be_cut_must_fit_in_one_step_with_its_output() -> None:
    """After a preemption the output is computed with the prompt; the last token never is."""
    limiter = WholePrompt(8)
    assert limiter.refuse(request("a", 5, max_tokens=4), 9) is None
    refusal = limiter.refuse(request("a", 5, max_tokens=5), 10)
    assert refusal is not None
    for number in ("prompt (5 tokens)", "max_tokens (5)", "max_num_batched_tokens=8"):
        assert number in refusal


def test_an_adapter_needs_slots_for_adapters() -> None:
    assert AdapterSlots(0).refuse(request("a", 5), 21) is None
    assert AdapterSlots(1).refuse(request("a", 5, lora="x"), 21) is None
    refusal = AdapterSlots(0).refuse(request("a", 5, lora="x"), 21)
    assert refusal == "adapter 'x' is asked for, but max_loras=0: the engine runs without"


def test_adapters_share_their_slot_and_leave_it_with_the_last_user() -> None:
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
        ({}, [TokenBudget, AdapterSlots]),
        ({"max_drafts": 1}, [OneInFlight, TokenBudget, AdapterSlots]),
        ({"long_prefill_tokens": 1}, [LongPrefill, TokenBudget, AdapterSlots]),
        ({"prompt_logprob_tokens": 1}, [TokenBudget, PromptLogprobs, AdapterSlots]),
        ({"chunked_prefill": False}, [TokenBudget, WholePrompt, AdapterSlots]),
    ],
)
def test_a_configuration_gets_the_limiters_it_calls_for(
    settings: dict[str, Any], kinds: list[type[Limiter]]
) -> None:
    assert [type(limiter) for limiter in limiters_for(config(**settings))] == kinds
