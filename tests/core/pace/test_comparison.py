"""Steps with drafts are compared with those without, and an account bounds what they may cost."""

from __future__ import annotations

import pytest

from octavo.core.pace.comparison import (
    FIRST_SECONDS,
    LEAST_BETWEEN,
    LEAST_WAIT,
    MOST_BETWEEN,
    MOST_DEBT,
    MOST_EXCUSED,
    MOST_SECONDS,
    MOST_STEPS,
    NUM_FOR_GAIN,
    NUM_TOGETHER,
    NUM_UNKNOWN,
    NUM_WITHOUT,
    SHARE,
    TRIAL_SECONDS,
    TRIAL_STEPS,
    Comparison,
)
from octavo.core.pace.learner import Learner
from octavo.core.plan import StepPlan
from octavo.core.stats import EngineStats


def comparison() -> Comparison:
    return Comparison(Learner(EngineStats(), 4))


def decoding(drafts: int = 0, *, more: int = 0, step: int = 3) -> StepPlan:
    """Return the plan of a step of one sequence with so many drafts, and tokens of prompts."""
    verified = ((0, tuple(range(drafts))),) if drafts else ()
    return StepPlan(step, (), (), (), (), (0,), (5,), (1 + drafts + more,), (True,), verified)


def test_the_seconds_of_steps_without_prompts_are_learned() -> None:
    made = comparison()
    made.learn(decoding(more=7), 0, 9.0)
    assert not made.times
    made.learn(decoding(), 0, 0.0)  # the clock was set back
    assert not made.times
    made.learn(decoding(), 0, 1.0)
    made.learn(decoding(2), 0, 1.5)
    plain, seconds = made.costs(1, 5)
    assert plain == 1.0
    assert seconds(3) == pytest.approx(1.5, abs=0.1)


def test_the_account_bounds_what_drafts_may_cost() -> None:
    made = comparison()
    made.learn(decoding(), 0, 1.0, FIRST_SECONDS / 2)
    assert not made.is_resting
    made.learn(decoding(), 0, 1.0, FIRST_SECONDS)
    assert made.is_resting
    num_steps = 0
    while made.is_resting:
        made.learn(decoding(), 0, 1.0)
        num_steps += 1
    assert TRIAL_SECONDS < num_steps * SHARE < TRIAL_SECONDS + FIRST_SECONDS


def test_accepted_drafts_pay_into_the_account_what_their_rows_do_not_cost() -> None:
    made = comparison()
    for _ in range(40):
        made.learn(decoding(), 0, 0.1)
        made.learn(decoding(2), 2, 0.14)
    assert made.seconds == MOST_SECONDS
    made.seconds = 0.5
    made.learn(decoding(2), 2, 0.14)
    assert made.seconds == pytest.approx(0.5 + SHARE * 0.14 + 2 * 0.1 - 0.04, abs=0.001)
    made.seconds = 0.5
    made.learn(decoding(2, more=9), 1, 0.5)  # beside a prompt
    assert made.seconds == pytest.approx(0.5 + SHARE * 0.5 + 0.1 - 0.04, abs=0.001)


def test_drafts_that_are_never_right_are_no_longer_sent() -> None:
    """Whatever chances their source gives."""
    made = comparison()
    for _ in range(40):
        made.learn(decoding(), 0, 0.1)
    num_steps = 0
    while not made.is_resting:
        made.learn(decoding(2), 0, 0.14)
        num_steps += 1
    assert num_steps < 2 * MOST_SECONDS / 0.04


def test_stalls_of_a_second_model_are_excused_up_to_a_bound() -> None:
    made = comparison()
    made.learn(decoding(), 0, 0.1, MOST_EXCUSED + 0.04, usual_seconds=0.02)
    assert made.seconds == pytest.approx(FIRST_SECONDS - 0.04, abs=0.01)
    made.learn(decoding(), 0, 0.1, 1.0, usual_seconds=0.02)
    assert made.is_resting
    made.learn(decoding(), 0, 0.1, 1e6, usual_seconds=0.02)
    assert made.seconds == -MOST_DEBT


def test_stalls_outside_of_it_excuse_as_long_ones_of_a_second_model() -> None:
    made = comparison()
    made.learn(decoding(), 0, 0.1, MOST_EXCUSED, usual_seconds=0.0)
    made.learn(decoding(), 0, 2.0)
    made.learn(decoding(), 0, 0.1, 1.7, usual_seconds=0.0)
    assert made.seconds == pytest.approx(FIRST_SECONDS + 2.2 * SHARE, abs=0.05)


def test_a_step_must_have_no_drafts_the_more_often_the_less_they_gain() -> None:
    made = comparison()
    step = 0

    def interval() -> int:
        nonlocal step
        began = step
        while made.may_have_drafts(step + 1):
            made.learn(decoding(1, step=step), 1, 0.12)
            step += 1
        made.learn(decoding(1, step=step), 1, 0.12)
        step += 1
        later = [made.may_have_drafts(step + wait) for wait in range(NUM_WITHOUT + 1)]
        assert later == [False] * NUM_WITHOUT + [True]
        num_before = step - began - 1
        for _ in range(NUM_WITHOUT):
            made.learn(decoding(step=step), 0, 0.1)
            step += 1
        return num_before

    assert interval() == NUM_UNKNOWN
    made.has_chosen(1, 0.1)
    assert interval() == 0.1 * NUM_FOR_GAIN
    made.has_chosen(1, 0.001)
    assert interval() == LEAST_BETWEEN
    made.has_chosen(1, 5.0)
    assert interval() == MOST_BETWEEN
    made.has_chosen(2, 5.0)  # two rows were measured, with drafts or without
    assert interval() == MOST_BETWEEN
    made.has_chosen(7, 5.0)
    assert interval() == NUM_UNKNOWN


def test_where_a_prompt_came_into_that_step_another_one_shows_it() -> None:
    made = comparison()
    for step in range(NUM_UNKNOWN):
        made.learn(decoding(1, step=step), 1, 0.12)
    step = NUM_UNKNOWN
    for _ in range(NUM_WITHOUT):
        step += 1
        assert not made.may_have_drafts(step)
        made.learn(decoding(more=5, step=step), 0, 0.5)
    step += 1
    assert made.may_have_drafts(step)
    made.learn(decoding(1, step=step), 1, 0.12)
    later = [made.may_have_drafts(step + wait) for wait in range(1, 2 * LEAST_WAIT + 1)]
    assert later == [True, True, True, False]


def test_steps_that_continue_each_other_are_learned_together() -> None:
    """A step without drafts takes their mean, and none of them is left out."""
    made = comparison()
    for step in range(NUM_TOGETHER):
        made.add_alike(decoding(step=step), 0.1 + 0.01 * (step % 2))
        assert made.times.knows(1) == (step == NUM_TOGETHER - 1)
    assert made.times.seconds(1) == pytest.approx(0.105)
    made.add_alike(decoding(step=NUM_TOGETHER), 0.1)
    made.learn(decoding(2, step=NUM_TOGETHER + 1), 1, 0.2)
    share = SHARE * (0.105 * NUM_TOGETHER + 0.3)
    saved = made.times.seconds(1) - (made.times.seconds(3) - made.times.seconds(1))
    assert made.seconds == pytest.approx(FIRST_SECONDS + share + saved, abs=1e-3)


def test_a_step_that_follows_none_does_not_show_what_one_takes_without_drafts() -> None:
    """Steps without drafts are planned while others run, which hides what planning takes."""
    made = comparison()
    made.learn(decoding(step=0), 0, 0.3, is_usual=False)
    assert not made.times.knows(1)
    made.learn(decoding(step=1), 0, 0.1)
    assert made.times.seconds(1) == pytest.approx(0.1)


def test_steps_with_prompts_do_not_take_drafts_from_every_other_step() -> None:
    """A step of theirs without drafts shows nothing, and the next is ever farther away."""
    made = comparison()
    num_without = 0
    for step in range(200):
        has_drafts = made.may_have_drafts(step)
        num_without += not has_drafts
        more = 9 if step > NUM_UNKNOWN else 0
        made.learn(decoding(2 * has_drafts, more=more, step=step), 2 * has_drafts, 0.1)
    assert num_without == 6 * NUM_WITHOUT


def test_steps_of_a_clock_that_was_set_back_show_nothing() -> None:
    made = comparison()
    for step in range(NUM_TOGETHER):
        made.add_alike(decoding(step=step), 0.0)
    assert not made.times.knows(1)


def test_the_account_of_a_small_model_has_less() -> None:
    """Half a second is many steps of it: for so long, drafts that do not pay would be sent."""
    made = comparison()
    made.learn(decoding(step=0), 0, 0.003)
    assert made.seconds == pytest.approx(MOST_STEPS * 0.003)
    made.learn(decoding(2, step=1), 0, 0.3)
    while not made.is_resting:
        made.learn(decoding(2, step=1), 0, 0.3)
    steps = 0
    while made.is_resting:
        steps += 1
        made.learn(decoding(step=2), 0, 0.003)
    assert made.seconds == pytest.approx(TRIAL_STEPS * made.times.seconds(1), rel=0.1)
    assert steps > 100
