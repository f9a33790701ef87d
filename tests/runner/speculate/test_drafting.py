"""Drafts are checked, and share what is left of a step after one token for each open slot."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from octavo.core.config import CoreConfig
from octavo.core.plan import NewSlot, StepPlan, StepResult
from octavo.runner.slots import SlotState
from octavo.runner.speculate.drafting import Drafting
from octavo.runner.speculate.proposer import Proposal, Turn
from tests.runner.plans import new_slot

VOCABULARY = 20
TOKENS = np.array([3, 4, 5], np.int32)


class OneByOne:
    """A proposer that calls `guess` for each slot; it fails unless `open` and `free` alternate."""

    most = 64
    chances: tuple[float, ...] = ()

    def __init__(self) -> None:
        self.open_slots: set[int] = set()

    def open(self, new: NewSlot) -> None:
        assert new.slot not in self.open_slots, f"slot {new.slot} is opened twice"
        self.open_slots.add(new.slot)

    def free(self, slot: int) -> None:
        self.open_slots.remove(slot)

    def forget(self) -> None:
        pass

    def propose(self, turns: Sequence[Turn]) -> list[Proposal]:
        assert {turn.slot for turn in turns} <= self.open_slots
        guesses = [self.guess(turn.slot, turn.tokens, turn.most) for turn in turns]
        return [Proposal(each, self.chances) for each in guesses]

    def guess(self, slot: int, tokens: Any, most: int) -> tuple[int, ...]:
        raise NotImplementedError


class Counting(OneByOne):
    """A proposer of 0, 1, 2, …: more than it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def guess(self, slot: int, tokens: Any, most: int) -> tuple[int, ...]:
        assert tokens is TOKENS
        self.asked.append(most)
        return tuple(range(10))


class Known(SlotState):
    """Slots whose tokens are always the same."""

    def known(self, slot: int) -> Any:
        return TOKENS


def drafting(proposer: OneByOne, num_open: int = 2, **settings: int) -> Drafting:
    limits: dict[str, Any] = {"max_drafts": 4, "max_num_batched_tokens": 64, **settings}
    config = CoreConfig(num_blocks=9, max_model_len=99, **limits)
    made = Drafting(proposer, VOCABULARY, config, Known(config, VOCABULARY, {}))
    for slot in range(num_open):
        made.open(new_slot(slot, [3], ()))
    return made


def drafted(made: Drafting, *slots: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
    return made.add_to(StepResult(0, ()), [*slots]).drafts


@pytest.mark.parametrize(
    ("budget", "num_open", "sampled", "most"),
    [
        (64, 2, [0, 1], 4),
        (10, 2, [0, 1], 4),
        (9, 2, [0, 1], 3),
        (6, 2, [0, 1], 2),
        (6, 2, [1], 4),
        (6, 5, [0, 1], 0),
        (3, 2, [0, 1], 0),
        (2, 5, [0], 0),
    ],
)
def test_drafts_never_take_the_token_of_an_open_slot(
    budget: int, num_open: int, sampled: list[int], most: int
) -> None:
    proposer = Counting()
    found = drafted(drafting(proposer, num_open, max_num_batched_tokens=budget), *sampled)
    assert proposer.asked == [most] * len(sampled)
    assert found == tuple((slot, tuple(range(most))) for slot in sampled if most)
    assert sum(len(drafts) for _, drafts in found) + num_open <= max(budget, num_open)


def test_a_freed_slot_leaves_its_token_to_the_others() -> None:
    proposer = Counting()
    made = drafting(proposer, 4, max_num_batched_tokens=6)
    drafted(made, 0)
    made.free(3)
    made.free(2)
    drafted(made, 0)
    assert proposer.asked == [2, 4]


@pytest.mark.parametrize(
    ("guessed", "kept"),
    [((1, VOCABULARY, 2), (1,)), ((-1, 1), ()), ((), ()), ((7, 8), (7, 8))],
)
def test_an_invalid_id_ends_a_draft(guessed: tuple[int, ...], kept: tuple[int, ...]) -> None:
    class Fixed(OneByOne):
        def guess(self, slot: int, tokens: Any, most: int) -> tuple[int, ...]:
            return guessed

    found = drafted(drafting(Fixed()), 1)
    assert found == (((1, kept),) if kept else ())


def test_drafts_that_a_grammar_forbids_are_cut() -> None:
    made = drafting(Counting(), max_num_batched_tokens=64)
    result = made.add_to(StepResult(0, ()), [0, 1], lambda slot, all_: all_.first(2 * slot))
    assert result.drafts == ((1, (0, 1)),)


def test_without_sampled_slots_nothing_is_asked() -> None:
    proposer = Counting()
    assert drafted(drafting(proposer)) == ()
    assert proposer.asked == []


def test_a_slot_without_drafts_is_not_proposed_to() -> None:
    """The slot still has its token of the step."""
    proposer = Counting()
    made = drafting(proposer, 1, max_num_batched_tokens=4)
    made.open(new_slot(1, [3], (), may_draft=False))
    assert proposer.open_slots == {0}
    assert made.append([0, 1], [[6], [7]], {}, frozenset()) == [0]
    drafted(made, 0)
    assert proposer.asked == [2]
    made.free(1)
    assert made.is_used
    made.free(0)
    assert not made.is_used


def with_prediction(proposer: OneByOne | None, *predicted: int) -> Drafting:
    config = CoreConfig(num_blocks=9, max_model_len=99, max_drafts=4)
    made = Drafting(proposer, VOCABULARY, config, Known(config, VOCABULARY, {}))
    made.open(new_slot(0, [3, 4, 5], (), num_prompt=1, prediction=array("i", predicted)))
    return made


def test_a_prediction_has_drafts_with_and_without_a_proposer() -> None:
    """The answer so far, 4 and 5, is where the predicted text begins."""
    alone = with_prediction(None, 4, 5, 6, 7, VOCABULARY, 8)
    result = alone.add_to(StepResult(0, ()), [0])
    assert result.drafts == ((0, (6, 7)),)
    assert result.predicted == (0,)
    ((slot, chances),) = result.chances
    assert (slot, len(chances)) == (0, 2)
    assert 1 > chances[0] > chances[1] > 0


@pytest.mark.parametrize(("chance", "is_predicted"), [(0.1, True), (0.99, False)])
def test_of_a_prediction_and_a_proposal_the_likelier_is_sent(
    chance: float, is_predicted: bool
) -> None:
    proposer = Counting()
    proposer.chances = (chance,) * 10
    made = with_prediction(proposer, 4, 5, 6, 7)
    result = made.add_to(StepResult(0, ()), [0])
    assert result.predicted == ((0,) if is_predicted else ())
    assert result.drafts == ((0, (6, 7) if is_predicted else (0, 1, 2, 3)),)


def without_drafts(step: int, *slots: int) -> StepPlan:
    count = len(slots)
    return StepPlan(step, (), (), (), (), slots, (9,) * count, (1,) * count, (True,) * count, ())


def test_where_no_drafts_are_sent_only_some_steps_are_proposed_behind() -> None:
    """The tokens of the others are read before the next proposal, each in its place."""
    config = CoreConfig(num_blocks=9, max_model_len=99, max_drafts=4)
    state = SlotState(config, VOCABULARY, {})
    made = Drafting(None, VOCABULARY, config, state)
    for slot, may_draft in ((0, True), (1, False), (2, True)):
        new = new_slot(slot, [3], ((1,),), may_draft=may_draft)
        state.open(new)
        made.open(new)
    kept = []
    for step in range(12):
        drawn = (10 + step, 30 + step, 50 + step)
        kept.append(made.keeps(without_drafts(step, 0, 1, 2), drawn))
        if not kept[-1]:
            assert made.append((0, 1, 2), [[token] for token in drawn], {}, frozenset()) == [0, 2]
            assert state.known(2).tolist() == [3, *range(50, 51 + step)]
    assert kept == [False] * 4 + [True, True, True, False] * 2
    assert state.known(0).tolist() == [3, *range(10, 22)]
    assert state.known(1).tolist() == [3]


def test_steps_behind_drafts_or_a_new_sequence_are_all_proposed_behind() -> None:
    made = drafting(Counting(), 2)
    plan = without_drafts(0, 0)
    while not made.keeps(plan, (5,)):
        pass
    assert not made.keeps(plan._replace(drafts=((0, (4,)),)), (5,))
    assert not made.keeps(plan, (5,))
    while not made.keeps(plan, (5,)):
        pass
    assert not made.keeps(plan._replace(ahead=((0, (0.5,)),)), (5,))
    while not made.keeps(plan, (5,)):
        pass
    made.open(new_slot(2, [3], ()))
    assert not made.keeps(plan, (5,))


def test_what_was_kept_is_read_before_its_slot_is_freed() -> None:
    """Another sequence may have the slot next."""
    config = CoreConfig(num_blocks=9, max_model_len=99, max_drafts=4)
    state = SlotState(config, VOCABULARY, {})
    made = Drafting(None, VOCABULARY, config, state)
    new = new_slot(0, [3], ((1,),))
    state.open(new)
    made.open(new)
    while not made.keeps(without_drafts(0, 0), (5,)):
        pass
    made.free(0)
    state.free(0)
    state.open(new)
    made.open(new)
    made.read()
    assert state.known(0).tolist() == [3]


def test_behind_drafts_that_come_too_late_the_next_step_is_proposed_behind_too() -> None:
    """The core waits for these, where such drafts would pay."""
    made = drafting(Counting(), 1)
    plan = without_drafts(0, 0)
    for is_late in (False, True):
        while not made.keeps(plan, (5,)):
            pass
        while made.keeps(plan, (5,)):
            pass
        assert made.add_to(StepResult(0, ()), [0], is_late=is_late).drafts
        assert made.keeps(plan, (5,)) is not is_late
