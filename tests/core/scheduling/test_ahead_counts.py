"""What a second model computes and proposes is as much as gains more than it costs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from octavo.core.limits import StepTime
from octavo.core.pace.ahead_counts import FIRST_RATE, NUM_TRIED, PASS_COST, AheadCounts
from octavo.core.pace.comparison import (
    LEAST_BETWEEN,
    MOST_SECONDS,
    NUM_UNKNOWN,
    NUM_WITHOUT,
    Comparison,
)
from octavo.core.pace.width_times import NUM_FEW
from octavo.core.plan import StepPlan
from octavo.core.plan_draft import PlanDraft
from octavo.core.sequence import Sequence
from tests.core.ahead_trees import trees_by
from tests.core.make import Rig, counting, tokens

Drafts = tuple[int, ...]


def rig(**settings: Any) -> tuple[Rig, AheadCounts]:
    """Return a rig with a second model that proposes up to four tokens."""
    made = Rig(**{"max_drafts": 4, "max_ahead": 4, "num_blocks": 200, **settings})
    ahead = made.scheduler.ahead
    assert ahead is not None
    return made, ahead


def comparison_of(made: Rig) -> Comparison:
    return made.scheduler._drafts._comparison


def planned(made: Rig) -> StepPlan:
    plan = made.plan()
    assert plan is not None
    return plan


def asked(plan: StepPlan) -> list[int]:
    """Return how much each plan asks the second model to propose, slot by slot."""
    return [len(chances) for _, chances in plan.ahead]


def sequence_of(made: Rig, name: str) -> Sequence:
    return made.scheduler.sequences[name]


def score(ahead: AheadCounts, one: Sequence, count: int, num_accepted: int) -> None:
    """Count so many drafts in a chain, of which the first ones were accepted."""
    one.verifying = tuple(range(count))
    ahead.score(one, range(num_accepted))
    one.verifying = ()


def test_a_prompt_is_read_and_something_proposed_behind_it() -> None:
    made, _ = rig(max_num_batched_tokens=8)
    made.add("a", 12, max_tokens=30)
    assert asked(planned(made)) == [0]
    made.land()
    plan = planned(made)
    assert asked(plan) == [2]
    ((_, chances),) = plan.ahead
    assert chances == pytest.approx((FIRST_RATE, FIRST_RATE**2))


def test_nothing_is_asked_without_a_second_model_or_a_request_that_drafts() -> None:
    made = Rig(max_drafts=4)
    assert made.scheduler.ahead is None
    for settings in ({"proposes": False}, {"max_drafts": 0}):
        made, _ = rig(**settings)
        made.add("a", 6, max_tokens=9)
        assert planned(made).ahead == ()
    made, _ = rig()
    made.add("a", 6, max_tokens=9, speculation=False)
    assert planned(made).ahead == ()


def test_nothing_is_proposed_behind_the_end() -> None:
    made, _ = rig()
    made.add("a", 6, max_tokens=3)
    assert asked(planned(made)) == [1]
    made, _ = rig()
    made.add("a", 6, max_tokens=2)
    assert asked(planned(made)) == []


def test_a_second_model_of_shorter_texts_reads_their_first_part() -> None:
    made, _ = rig(max_ahead_len=8)
    made.add("a", 6, max_tokens=20)
    counts = []
    for _ in range(6):
        counts.append(asked(planned(made)))
        made.land()
    assert counts == [[2], [1], [], [], [], []]


def test_blocks_for_proposals_are_taken_where_enough_are_free() -> None:
    made, ahead = rig(block_size=4, model=counting)
    ahead.rates = [[0.99]] * 4
    made.add("a", 7, max_tokens=30)
    assert asked(planned(made)) == [4]
    assert sequence_of(made, "a").num_capacity == 12
    made, ahead = rig(block_size=4, num_blocks=4)
    ahead.rates = [[0.99]] * 4
    made.add("a", 7, max_tokens=3)
    assert asked(planned(made)) == [1]
    assert sequence_of(made, "a").num_capacity == 8


def test_no_block_is_taken_that_another_sequence_may_need() -> None:
    made, ahead = rig(block_size=4, num_blocks=4)
    ahead.rates = [[0.99]] * 4
    made.add("a", 7, max_tokens=5)
    assert asked(planned(made)) == [1]
    assert sequence_of(made, "a").num_capacity == 8


def test_all_blocks_for_proposals_are_taken_or_none() -> None:
    made, ahead = rig(block_size=1, num_blocks=16)
    ahead.rates = [[0.99]] * 4
    for family, name in enumerate("ab"):
        made.add(name, tokens(6, family), max_tokens=8)
    assert asked(planned(made)) == []
    assert made.scheduler.kv.pool.num_free == 3


def test_all_rows_of_a_block_have_places_or_it_is_not_computed() -> None:
    """However few of its tokens are asked for: here two, of a block of five rows."""
    made, _ = rig(block_size=4, ahead_in_block=True, model=counting)
    made.add("a", 7, max_tokens=4)
    assert asked(planned(made)) == [2]
    assert sequence_of(made, "a").num_capacity == 12
    made, _ = rig(block_size=4, ahead_in_block=True, num_blocks=4)
    made.add("a", 7, max_tokens=4)
    assert asked(planned(made)) == []
    assert sequence_of(made, "a").num_capacity == 8


def test_no_block_goes_behind_the_longest_text() -> None:
    for longest, count in ((12, [4]), (11, [])):
        made, ahead = rig(ahead_in_block=True, max_ahead_len=longest)
        ahead.rates = [[0.99]] * 4
        made.add("a", 7, max_tokens=30)
        assert asked(planned(made)) == count


def test_the_pass_of_a_block_is_measured_once_for_all_its_tokens() -> None:
    made, ahead = rig(ahead_in_block=True)
    ahead.rates = [[0.99]] * 4
    made.add("a", 6, max_tokens=30)
    plan = planned(made)
    assert asked(plan) == [4]
    ahead.learn(plan, 0, 0.2, 0.04)
    assert ahead.pass_seconds == 0.04
    assert ahead.expected_seconds == 0.04


def test_a_dear_pass_lets_no_sequence_send_drafts_that_are_not_worth_their_rows() -> None:
    """Rows seem cheap while the pass is not paid for, since the speed is low then."""
    made, ahead = rig(ahead_in_block=True, max_num_seqs=2)
    comparison = comparison_of(made)
    for name in ("a", "b"):
        made.add(name, 6, max_tokens=30)
    planned(made)
    first, second = (sequence_of(made, name) for name in ("a", "b"))
    for rows in [*range(1, 11)] * NUM_FEW:
        comparison.times.learn(rows, 1.0 + 0.25 * rows, has_drafts=False)
    ahead.pass_seconds = 1.0
    first.rates, second.rates = [[0.99]] * 4, [[0.3]] * 4
    trees = ahead._trees([first, second], 2, 0)
    assert [tree.num_drafts for tree in trees] == [4, 0]


def test_a_sequence_that_was_taken_out_of_a_plan_is_passed_over() -> None:
    made, ahead = rig()
    made.add("a", 6, max_tokens=30)
    planned(made)
    draft = PlanDraft()
    draft.sequences, draft.starts, draft.counts, draft.samples = [None], [0], [6], [True]
    ahead.choose(draft, 1)
    assert draft.ahead == []


@pytest.mark.parametrize("lag", [40, 41])
def test_a_sequence_that_is_far_behind_is_not_read(lag: int) -> None:
    made, _ = rig(max_num_batched_tokens=100, max_ahead_lag=lag)
    comparison_of(made).is_resting = True
    made.add("a", 41, max_tokens=30)
    assert planned(made).ahead == ()
    made.land()
    comparison_of(made).is_resting = False
    assert asked(planned(made)) == ([2] if lag == 41 else [])


def test_rates_are_measured_by_place_and_return_slowly() -> None:
    made, ahead = rig()
    made.add("a", 6, max_tokens=30)
    planned(made)
    one = sequence_of(made, "a")
    score(ahead, one, 3, 1)
    assert one.rates[0] > [FIRST_RATE] > one.rates[1]
    assert one.rates[2] == [FIRST_RATE]  # that place was not reached
    assert one.rates[1] < ahead.rates[1] < [FIRST_RATE]
    one.rates, ahead.rates = [[0.0] for _ in range(4)], [[0.0] for _ in range(4)]
    made.land()
    assert planned(made).ahead == ()
    assert [0.0] < one.rates[0] < ahead.rates[0] < [0.01]


def test_drafts_of_another_source_than_the_second_model_change_no_rates() -> None:
    made, ahead = rig()
    made.add("a", 6, max_tokens=30)
    one = sequence_of(made, "a")
    score(ahead, one, 3, 3)
    assert one.rates == []
    assert ahead.rates == [[FIRST_RATE]] * 4


def test_dear_passes_are_not_made() -> None:
    for seconds, count in ((0.001, 2), (3.0, 0)):
        made, ahead = rig()
        for name in "abc":
            made.add(name, 6, max_tokens=30)
        planned(made)
        made.land()
        ahead.pass_seconds = seconds
        for rows in (3, 6, 9):
            comparison_of(made).times.learn(rows, 0.1 + 0.02 * rows, has_drafts=False)
        counts = asked(planned(made))
        assert len(set(counts)) == (count > 0)
        assert max(counts, default=0) >= count


def test_the_seconds_of_a_pass_are_measured() -> None:
    _, ahead = rig()
    plan = StepPlan(7, (), (), (), (), (0,), (5,), (1,), (True,), (), ahead=((0, (0.7, 0.5)),))
    ahead.learn(plan, 0, 1.0, 0.8)  # of a step with prompts, or one in which it caught up
    assert ahead.pass_seconds == 0.0
    ahead._usual_step = 7
    ahead.learn(plan, 0, 1.0, 0.4)
    assert ahead.pass_seconds == pytest.approx(0.2)
    ahead.learn(plan, 0, 1.0, 0.6)
    assert ahead.pass_seconds == pytest.approx(0.22)


def test_a_stall_counts_as_twice_what_is_known_of_a_pass() -> None:
    _, ahead = rig()
    plan = StepPlan(7, (), (), (), (), (0,), (5,), (1,), (True,), (), ahead=((0, (0.7, 0.5)),))
    ahead._usual_step = 7
    ahead.learn(plan, 0, 1.0, 0.1)
    ahead.learn(plan, 0, 1.0, 90.0)
    assert ahead.pass_seconds == pytest.approx(0.06)


def test_what_is_known_of_a_dear_pass_returns_to_what_is_expected_first() -> None:
    made, ahead = rig()
    for rows in (1, 2, 3):
        comparison_of(made).times.learn(rows, 0.1 + 0.025 * rows, has_drafts=False)
    ahead.pass_seconds = 0.5
    made.add("a", 6, max_tokens=30)
    assert asked(planned(made)) == []
    assert 0.48 < ahead.pass_seconds < 0.5  # the first time may have waited for memory
    ahead._return([], [], 1)
    soon, ahead._num_measured = ahead.pass_seconds, NUM_TRIED
    ahead._return([], [], 1)
    assert 0.0 < soon - ahead.pass_seconds < 0.002
    for _ in range(2000):
        ahead._return([], [], 1)
    assert 0.1 * PASS_COST <= ahead.pass_seconds < 0.03
    ahead.pass_seconds = 0.001
    ahead._return([], [], 1)
    assert ahead.pass_seconds == 0.001


def test_the_rates_of_a_sequence_whose_drafts_are_not_sent_return() -> None:
    """Proposals that are not likely enough to be verified would never be measured again."""
    made, ahead = rig(model=counting)
    made.add("a", 6, max_tokens=50, ignore_eos=True)
    planned(made)
    one = sequence_of(made, "a")
    one.rates = [[0.2] for _ in range(4)]
    made.land()
    ahead._return([one], [1], 1)
    assert 0.2 < one.rates[0][0] < FIRST_RATE
    before = one.rates[0][0]
    one.verifying = (1,)
    ahead._return([one], [1], 1)
    assert one.rates[0][0] == before
    one.verifying = ()


def test_verified_proposals_are_scored() -> None:
    made, _ = rig(model=counting, drafter=lambda known: [len(known), 0])
    made.add("a", 6, max_tokens=30)
    for _ in range(2):
        planned(made)
        made.land()
    one = sequence_of(made, "a")
    assert one.rates[0] > [FIRST_RATE] > one.rates[1]
    assert one.rates[2] == [FIRST_RATE]


def test_rates_of_places_that_are_not_sent_return() -> None:
    """A place that was wrong by chance would never be tried again behind one that is right."""
    made, ahead = rig()
    made.add("a", 6, max_tokens=30)
    planned(made)
    one = sequence_of(made, "a")
    one.rates = [[0.2] for _ in range(4)]
    ahead.rates = [[0.5] for _ in range(4)]
    score(ahead, one, 1, 1)
    assert 0.2 < one.rates[1][0] < 0.22
    assert 0.5 < ahead.rates[1][0] < 0.51


def test_a_step_without_drafts_is_made_now_and_then() -> None:
    made, ahead = rig(
        max_model_len=1400, num_blocks=1400, model=counting, drafter=lambda known: [0] * 4
    )
    made.worker.chances = (0.9, 0.8, 0.7, 0.6)
    made.add("a", 6, max_tokens=1380, ignore_eos=True)
    without = []
    for step in range(1300):
        if asked(planned(made)) == [] and step > 0:
            without.append(step)
        made.now += 0.1
        made.land()
        ahead.rates = sequence_of(made, "a").rates = [[0.9] for _ in range(4)]
        comparison_of(made).seconds = MOST_SECONDS  # though none is right
    begun = [step for step in without if step - 1 not in without]
    assert begun[0] == NUM_UNKNOWN + 1
    assert 1 < len(begun) < 10
    assert len(without) == NUM_WITHOUT * len(begun)
    assert all(after - before > LEAST_BETWEEN for before, after in pairwise(begun))


def test_steps_are_learned_without_what_the_second_model_takes() -> None:
    """The model of steps stays true when the second model rests; reports have the whole time."""
    made, _ = rig()
    made.add("a", 6, max_tokens=30)
    planned(made)
    made.now += 3.0
    made.results[0] = made.results[0]._replace(ahead_seconds=2.0)
    made.land()
    stats = made.scheduler.stats
    assert list(stats.recent_seconds) == [pytest.approx(3.0)]
    assert [seconds for _, seconds in stats.ended_after(0, 1)] == [pytest.approx(1.0)]


def test_prompts_get_what_the_second_model_leaves_of_the_goal(monkeypatch: Any) -> None:
    made, _ = rig(max_model_len=200, itl_goal=10.0)
    monkeypatch.setattr(AheadCounts, "_trees", trees_by(lambda _, each, *__: [2] * len(each)))
    pace = next(each for each in made.scheduler.limiters if isinstance(each, StepTime))
    made.add("a", 6, max_tokens=180, ignore_eos=True)

    def room(seconds: float, ahead_seconds: float) -> float:
        for _ in range(8):
            assert asked(planned(made)) == [2]
            made.now += seconds
            made.results[0] = made.results[0]._replace(ahead_seconds=ahead_seconds)
            made.land()
            comparison_of(made).seconds = MOST_SECONDS  # it does not rest
        pace.begin(PlanDraft(), made.now)
        return pace.room

    assert room(1.0, 0.0) == pytest.approx(9.0, abs=0.1)
    assert room(1.4, 0.4) == pytest.approx(8.6, abs=0.1)
    comparison_of(made).is_resting = True
    pace.begin(PlanDraft(), made.now)
    assert pace.room == pytest.approx(9.0, abs=0.1)


@pytest.mark.parametrize(("chances", "asks"), [((0.9, 0.9, 0.8), False), ((0.6, 0.4, 0.3), True)])
def test_nothing_is_proposed_where_a_prediction_is_likelier_right(
    chances: tuple[float, ...], *, asks: bool
) -> None:
    """The likelier drafts are sent, so that passes for the others would be lost."""
    made, ahead = rig(model=counting, drafter=lambda known: [known[-1] + at for at in (1, 2, 3)])
    ahead.rates = [[rate] for rate in (0.7, 0.7, 0.7, 0.0)]
    made.worker.chances, made.worker.predicts = chances, True
    made.add("a", 7, max_tokens=30, prediction=tokens(30))
    assert asked(planned(made)) != []
    made.land()
    found = []
    for _ in range(4):
        plan = planned(made)
        found.append((bool(plan.drafts), asked(plan) != []))
        made.land()
    assert found == [(True, asks)] * 4
    made.worker.drafter = None  # it has nothing more
    made.plan()
    made.land()
    assert asked(planned(made)) != []


def test_what_may_not_draft_is_not_asked_about() -> None:
    made, ahead = rig()
    made.add("a", 6, max_tokens=30)
    planned(made)
    made.land()
    running = [sequence_of(made, "a")]
    assert ahead.pays(running, 2)
    running[0].may_draft = False
    assert not ahead.pays(running, 2)
    assert [ahead.is_due(step) for step in (2, 3, 4)] == [False, False, True]
    running[0].may_draft, running[0].catching_up = True, True
    assert not ahead.pays(running, 4)
