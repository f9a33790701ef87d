"""Prompt lookup finds what a search through all tokens finds, and drafts only where it pays."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from octavo.runner.speculate.ngram import (
    FIRST_RATES,
    History,
    NgramProposer,
)
from octavo.runner.speculate.proposer import Turn
from tests.runner.plans import new_slot

PLACES = 1 << 16


def as_array(tokens: list[int]) -> Any:
    return np.array(tokens, np.int32)


def draft(made: History, most: int, least: float = 0.0) -> list[int]:
    """Return the drafts that are right, with all before, at least so probably."""
    proposal = made.draft(most)
    assert len(proposal.tokens) == len(proposal.chances)
    pairs = zip(proposal.tokens, proposal.chances, strict=True)
    return [token for token, chance in pairs if chance >= least]


def history(tokens: list[int], shortest: int = 2, longest: int = 4) -> History:
    made = History(shortest, longest, PLACES)
    made.extend(as_array(tokens))
    return made


def searched(tokens: list[int], shortest: int, longest: int) -> tuple[int, int]:
    """Return where the most recent occurrence of the longest suffix ends, and its length."""
    for size in range(min(longest, len(tokens) - 1), shortest - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if tokens[end - size : end] == tokens[-size:]:
                return end, size
    return 0, 0


def followed(tokens: list[int], num_first: int, shortest: int, longest: int) -> list[int]:
    """Return the drafts of a match that is searched for anew at every token, as History defines."""
    source, _ = searched(tokens[:num_first], shortest, longest)
    for end in range(num_first, len(tokens)):
        if source and tokens[source] == tokens[end]:
            source += 1
        else:
            source, _ = searched(tokens[: end + 1], shortest, longest)
    text = list(tokens)
    if source:
        for place in range(source, source + 6):
            text.append(text[place])
    return text[len(tokens) :]


@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (1, 3), (2, 4), (3, 3), (2, 32)])
def test_the_match_is_the_one_that_a_search_through_all_tokens_finds(
    shortest: int, longest: int
) -> None:
    for seed in range(40):
        chance = random.Random(seed)
        tokens = [chance.randrange(3 + seed % 4) for _ in range(chance.randrange(1, 90))]
        num_first = chance.randrange(1, len(tokens) + 1)
        made = History(shortest, longest, PLACES)
        made.extend(as_array(tokens[:num_first]))
        rest = tokens[num_first:]
        while rest:
            count = chance.randrange(1, 4)
            made.extend(as_array(rest[:count]))
            rest = rest[count:]
        made.rates.values[:] = [1.0] * len(FIRST_RATES)  # whatever the text has shown
        assert draft(made, 6, 0.0) == followed(tokens, num_first, shortest, longest)


def test_a_loop_goes_on_through_its_own_drafts() -> None:
    assert draft(history([9, 1, 2, 3, 1, 2, 3, 1, 2]), 7, 0.0) == [3, 1, 2, 3, 1, 2, 3]
    assert draft(history([5, 5, 5]), 4, 0.0) == [5, 5, 5, 5]


def test_the_longest_and_then_the_most_recent_occurrence_counts() -> None:
    assert draft(history([1, 2, 3, 7, 2, 3, 8, 1, 2, 3]), 1, 0.0) == [7], "three tokens match"
    assert draft(history([2, 3, 7, 2, 3, 8, 2, 3]), 1, 0.0) == [8], "the later of two"


@pytest.mark.parametrize("tokens", [[4], [1, 2, 3, 4], [1, 2, 3, 1]])
def test_without_an_earlier_occurrence_there_are_no_drafts(tokens: list[int]) -> None:
    assert draft(history(tokens), 5, 0.0) == []


def test_nothing_is_drafted_before_there_are_tokens() -> None:
    empty = History(2, 4, PLACES)
    empty.extend(as_array([]))
    assert draft(empty, 5, 0.0) == []


def test_drafts_end_where_they_become_less_probable_than_asked() -> None:
    """The first rates after a match of 2, 3, 4, … tokens decide."""
    made = history([1, 2, 3, 4, 5, 6, 7, 8, 1, 2])
    both = FIRST_RATES[2] * FIRST_RATES[3]
    assert draft(made, 5, FIRST_RATES[2] + 0.01) == []
    assert draft(made, 5, both + 0.01) == [3]
    assert draft(made, 5, both - 0.01) == [3, 4]
    assert draft(made, 1, 0.0) == [3]
    assert draft(made, 0, 0.0) == []


def test_drafts_grow_where_they_are_right_and_shrink_where_they_are_wrong() -> None:
    least = 0.5
    right, wrong = history([1, 2, 3] * 2), history([1, 2, 3] * 2)
    before = len(draft(right, 9, least))
    for index in range(60):
        right.extend(as_array([1 + index % 3]))
        wrong.extend(as_array([1, 2, 50 + index]))
    wrong.extend(as_array([1, 2]))
    assert len(draft(right, 9, least)) > before > 0
    assert draft(wrong, 9, least) == []


def test_rates_recover_without_a_single_draft() -> None:
    """Predictions are scored whether they were sent as drafts or not."""
    made = history([1, 2, 3])
    for index in range(60):
        made.extend(as_array([1, 2, 50 + index]))
    for _ in range(30):
        made.extend(as_array([1, 2, 3, 4]))
    assert len(draft(made, 5, 0.5)) == 5


def test_the_index_of_a_long_sequence_stays_bounded() -> None:
    """More tokens than places: older n-grams are overwritten, and what is found is right."""
    chance = random.Random(1)
    tokens = [chance.randrange(1000) for _ in range(3000)]
    made = History(2, 3, 1024)
    made.extend(as_array(tokens[:1500]))
    made.extend(as_array([*tokens[1500:], 2000, 2001, 2002, 2003, 2000, 2001]))
    assert draft(made, 2, 0.0) == [2002, 2003]
    assert sum(len(places) for places in made._places) == 2 * 1024


def test_many_tokens_at_once_and_one_by_one_give_the_same_index() -> None:
    chance = random.Random(2)
    tokens = [chance.randrange(50_000) for _ in range(400)]
    at_once, singly = history(tokens), History(2, 4, PLACES)
    for token in tokens:
        singly.extend(as_array([token]))
    assert at_once._places == singly._places


def turn(slot: int, tokens: list[int], most: int = 3) -> Turn:
    return Turn(slot, as_array(tokens), most)


def test_each_slot_has_its_own_tokens_until_it_is_freed() -> None:
    proposer = NgramProposer(2, 4, 5, 100)
    for slot in (0, 3):
        proposer.open(new_slot(slot, [1], ()))
    loop = [1, 2, 3, 4] * 5

    def proposed(*turns: Turn) -> list[list[int]]:
        return [[*each.tokens] for each in proposer.propose(turns)]

    assert proposed(turn(3, [7, 8, 9]), turn(0, loop)) == [[], [1, 2, 3]]
    assert proposed(turn(0, [*loop, 1, 2])) == [[3, 4, 1]]
    proposer.free(0)
    proposer.open(new_slot(0, [1], ()))
    assert proposed(turn(0, [5, 6, 7])) == [[]]
