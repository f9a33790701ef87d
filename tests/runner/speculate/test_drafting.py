"""Drafts are checked, and share what is left of a step after one token for each open slot."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from octavo.core.config import ConfigError, CoreConfig
from octavo.runner.speculate.drafting import Drafting
from octavo.runner.speculate.proposer import Turn

VOCABULARY = 20
TOKENS = np.array([3, 4, 5], np.int32)


class OneByOne:
    """A proposer that calls `guess` for each slot; it fails unless `open` and `free` alternate."""

    hidden_layers: tuple[int, ...] = ()

    def __init__(self) -> None:
        self.open_slots: set[int] = set()

    def open(self, slot: int) -> None:
        assert slot not in self.open_slots, f"slot {slot} is opened twice"
        self.open_slots.add(slot)

    def free(self, slot: int) -> None:
        self.open_slots.remove(slot)

    def propose(self, turns: Sequence[Turn]) -> list[tuple[int, ...]]:
        assert {turn.slot for turn in turns} <= self.open_slots
        return [self.guess(turn.slot, turn.tokens, turn.most) for turn in turns]

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


class WithHiddenStates(Counting):
    """A proposer that needs the output of two layers."""

    hidden_layers = (2, 5)


def drafting(proposer: OneByOne, num_open: int = 2, **settings: int) -> Drafting:
    limits: dict[str, Any] = {"max_drafts": 4, "max_num_batched_tokens": 64, **settings}
    made = Drafting(proposer, VOCABULARY, CoreConfig(num_blocks=9, max_model_len=99, **limits))
    for slot in range(num_open):
        made.open(slot)
    return made


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
    found = drafting(proposer, num_open, max_num_batched_tokens=budget).propose(
        sampled, lambda slot: TOKENS
    )
    assert proposer.asked == [most] * len(sampled)
    assert found == tuple((slot, tuple(range(most))) for slot in sampled if most)
    assert sum(len(drafts) for _, drafts in found) + num_open <= max(budget, num_open)


def test_a_freed_slot_leaves_its_token_to_the_others() -> None:
    proposer = Counting()
    made = drafting(proposer, 4, max_num_batched_tokens=6)
    made.propose([0], lambda slot: TOKENS)
    made.free(3)
    made.free(2)
    made.propose([0], lambda slot: TOKENS)
    assert proposer.asked == [2, 4]


@pytest.mark.parametrize(
    ("guessed", "kept"),
    [((1, VOCABULARY, 2), (1,)), ((-1, 1), ()), ((), ()), ((7, 8), (7, 8))],
)
def test_an_invalid_id_ends_a_draft(guessed: tuple[int, ...], kept: tuple[int, ...]) -> None:
    class Fixed(OneByOne):
        def guess(self, slot: int, tokens: Any, most: int) -> tuple[int, ...]:
            return guessed

    found = drafting(Fixed()).propose([1], lambda slot: TOKENS)
    assert found == (((1, kept),) if kept else ())


def test_without_sampled_slots_nothing_is_asked() -> None:
    proposer = Counting()
    assert drafting(proposer).propose([], lambda slot: TOKENS) == ()
    assert proposer.asked == []


def test_a_proposer_that_needs_hidden_states_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"the layers \(2, 5\), and no backend keeps"):
        drafting(WithHiddenStates())
