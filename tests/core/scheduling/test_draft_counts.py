"""As many drafts are sent as gain more than they cost, by their chances and the measured time."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core.pace.comparison import Comparison
from octavo.core.pace.draft_counts import DraftCounts
from octavo.core.pace.learner import Learner
from octavo.core.sequence import Sequence
from octavo.core.stats import EngineStats
from tests.core.make import Rig, a_line, config, expected_output, request, tokens


def drafting(*chances: float, count: int | None = None) -> Sequence:
    one = Sequence(request("r", 4), (0.0, 0.0, 0), 60, 0.0, a_line())
    one.catching_up = False
    one.drafts = tuple(range(len(chances) if count is None else count))
    one.chances = chances
    return one


def counts(*sequences: Sequence, could_start: bool = False, **settings: Any) -> list[int]:
    made = config(max_drafts=8, **settings)
    rule = DraftCounts(made, Comparison(Learner(EngineStats(), 4)))
    rule.limit(sequences, 0, could_start=could_start)
    return [len(each.drafts) for each in sequences]


def test_a_draft_must_gain_more_than_its_row_costs() -> None:
    """A row costs a fifth of the step of one sequence, before anything is measured."""
    assert counts(drafting(0.9, 0.5, 0.21, 0.15)) == [2]
    assert counts(drafting(0.19)) == [0]
    assert counts(drafting()) == [0]


def test_the_likelier_draft_comes_first() -> None:
    assert counts(drafting(0.9, 0.1), drafting(0.8, 0.7), max_step_drafts=3) == [1, 2]
    assert counts(drafting(0.7), drafting(0.8), max_step_drafts=1) == [0, 1]
    assert counts(drafting(0.8), drafting(0.8), max_step_drafts=1) == [1, 0]


def test_many_sequences_at_once_get_fewer_drafts() -> None:
    lengths = [counts(*(drafting(0.9, 0.7, 0.5) for _ in range(num)))[0] for num in (1, 4, 8, 40)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] == 3
    assert lengths[-1] == 0


def test_drafts_without_chances_are_sent_as_far_as_there_is_room() -> None:
    assert counts(drafting(count=5), drafting(count=5), max_num_batched_tokens=10) == [5, 3]
    assert counts(drafting(count=5), drafting(0.9), max_num_batched_tokens=7) == [5, 0]


def test_a_request_that_waits_leaves_drafts_a_quarter_of_the_room() -> None:
    late = drafting()
    late.catching_up = True
    assert counts(drafting(count=8), max_num_batched_tokens=17, could_start=True) == [4]
    assert counts(drafting(count=8), late, max_num_batched_tokens=18) == [4, 0]


@pytest.mark.parametrize(("row_seconds", "count"), [(0.01, 4), (0.3, 2), (20.0, 0)])
def test_the_cost_of_a_row_is_measured(row_seconds: float, count: int) -> None:
    """Rows that cost next to nothing let all drafts pay, and dear ones none."""
    comparison = Comparison(Learner(EngineStats(), 4))
    for _ in range(30):
        for rows in range(1, 6):
            comparison.times.learn(rows, 1.0 + row_seconds * rows, has_drafts=rows > 1)
    one = drafting(0.8, 0.4, 0.2, 0.15)
    DraftCounts(config(max_drafts=8), comparison).limit([one], 0, could_start=False)
    assert len(one.drafts) == count


@pytest.mark.parametrize("rests", [True, False])
def test_no_drafts_are_sent_while_they_rest_or_a_step_shows_what_it_takes(*, rests: bool) -> None:
    comparison = Comparison(Learner(EngineStats(), 4))
    comparison.is_resting = rests
    comparison._without = 6 if rests else 7
    rule = DraftCounts(config(max_drafts=8), comparison)
    for chances, count in (((0.9, 0.8), 0), ((), 2)):  # those without chances are all sent
        one = drafting(*chances, count=2)
        rule.limit([one], 7, could_start=False)
        assert len(one.drafts) == count


def test_only_some_of_the_larger_widths_are_used() -> None:
    """Each of them is measured often then."""
    comparison = Comparison(Learner(EngineStats(), 4))
    for _ in range(30):
        for rows in (16, 80):
            comparison.times.learn(rows, 1.0 + 0.01 * max(0, rows - 16), has_drafts=rows > 16)
    many = [drafting(0.9, 0.7, 0.2, 0.01) for _ in range(16)]
    DraftCounts(config(max_drafts=8, max_num_batched_tokens=100), comparison).limit(
        many, 0, could_start=False
    )
    assert sum(len(each.drafts) for each in many) == 32


def test_a_plan_has_the_drafts_that_pay_and_the_text_is_the_same() -> None:
    rig = Rig(max_drafts=4, drafter=lambda known: expected_output(known, 4))
    rig.worker.chances = (0.9, 0.8, 0.01, 0.01)
    rig.add("a", 6, max_tokens=16)
    rig.step()
    plan = rig.plan()
    assert plan is not None
    assert [len(drafts) for _, drafts in plan.drafts] == [2]
    rig.land()
    assert rig.finish() == {"a": expected_output(tokens(6), 16)}
    ended = rig.end_of("a").stats
    assert ended is not None
    assert ended.drafted_at == [5, 5]
    assert ended.accepted_at == [5, 5]


def test_drafts_of_a_prediction_are_counted_in_each_event() -> None:
    """A stop string of the front end may make any event the last one."""
    rig = Rig(max_drafts=4, drafter=lambda known: expected_output(known, 4))
    rig.worker.predicts = True
    rig.add("a", 6, max_tokens=12)
    assert rig.finish() == {"a": expected_output(tokens(6), 12)}
    counts = [each.stats.num_predicted for each in rig.events if each.stats is not None]
    assert len(counts) == len(rig.events) > 2
    ended = rig.end_of("a").stats
    assert ended is not None
    assert 0 < ended.num_accepted_predicted == ended.num_predicted == ended.num_drafts


@pytest.mark.parametrize("depth", [1, 2])
def test_only_those_draft_that_may(depth: int) -> None:
    """No proposer is set; one has a prediction, one none, and one switches speculation off."""
    rig = Rig(
        max_drafts=4,
        proposes=False,
        drafter=lambda known: expected_output(known, 4),
        pipeline_depth=depth,
    )
    names: dict[str, dict[str, Any]] = {
        "predicted": {"prediction": tokens(3, 7)},
        "plain": {},
        "off": {"prediction": tokens(3, 7), "speculation": False},
    }
    for number, (name, fields) in enumerate(names.items()):
        rig.add(name, tokens(6, number), max_tokens=16, **fields)
    assert rig.finish() == {
        name: expected_output(tokens(6, number), 16) for number, name in enumerate(names)
    }
    drafted = {name: rig.end_of(name).stats for name in names}
    assert {name: bool(stats and stats.num_drafts) for name, stats in drafted.items()} == {
        "predicted": True,
        "plain": False,
        "off": False,
    }


def test_all_sequences_share_a_step_while_some_may_draft() -> None:
    """Sequences would otherwise take turns in two steps of half the size."""
    rig = Rig(max_drafts=4, proposes=False, pipeline_depth=2)
    rig.add("plain", 6, max_tokens=24)
    assert rig.plan() is not None
    assert rig.plan() is not None
    rig.land()
    rig.add("predicted", tokens(6, 1), max_tokens=9, prediction=tokens(3, 7))
    num_chunks = []
    while "predicted" in rig.scheduler.sequences:
        plan = rig.plan() if len(rig.results) < 2 else None
        if plan is None:
            rig.land()
        else:
            num_chunks.append(len(plan.slots))
    assert num_chunks[:8] == [2] * 8
    rig.finish()
