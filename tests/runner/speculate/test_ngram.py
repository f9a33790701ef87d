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
    least_probability,
)
from octavo.runner.speculate.proposer import Turn

PLACES = 1 << 16


def as_array(tokens: list[int]) -> Any:
    return np.array(tokens, np.int32)


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
        assert made.draft(6, 0.0) == followed(tokens, num_first, shortest, longest)


def test_a_loop_goes_on_through_its_own_drafts() -> None:
    assert history([9, 1, 2, 3, 1, 2, 3, 1, 2]).draft(7, 0.0) == [3, 1, 2, 3, 1, 2, 3]
    assert history([5, 5, 5]).draft(4, 0.0) == [5, 5, 5, 5]


def test_the_longest_and_then_the_most_recent_occurrence_counts() -> None:
    assert history([1, 2, 3, 7, 2, 3, 8, 1, 2, 3]).draft(1, 0.0) == [7], "three tokens match"
    assert history([2, 3, 7, 2, 3, 8, 2, 3]).draft(1, 0.0) == [8], "the later of two"


@pytest.mark.parametrize("tokens", [[4], [1, 2, 3, 4], [1, 2, 3, 1]])
def test_without_an_earlier_occurrence_there_are_no_drafts(tokens: list[int]) -> None:
    assert history(tokens).draft(5, 0.0) == []


def test_nothing_is_drafted_before_there_are_tokens() -> None:
    empty = History(2, 4, PLACES)
    empty.extend(as_array([]))
    assert empty.draft(5, 0.0) == []


def test_drafts_end_where_they_become_less_probable_than_asked() -> None:
    """The first rates after a match of 2, 3, 4, … tokens decide."""
    made = history([1, 2, 3, 4, 5, 6, 7, 8, 1, 2])
    both = FIRST_RATES[2] * FIRST_RATES[3]
    assert made.draft(5, FIRST_RATES[2] + 0.01) == []
    assert made.draft(5, both + 0.01) == [3]
    assert made.draft(5, both - 0.01) == [3, 4]
    assert made.draft(1, 0.0) == [3]
    assert made.draft(0, 0.0) == []


def test_drafts_grow_where_they_are_right_and_shrink_where_they_are_wrong() -> None:
    least = 0.5
    right, wrong = history([1, 2, 3] * 2), history([1, 2, 3] * 2)
    before = len(right.draft(9, least))
    for index in range(60):
        right.extend(as_array([1 + index % 3]))
        wrong.extend(as_array([1, 2, 50 + index]))
    wrong.extend(as_array([1, 2]))
    assert len(right.draft(9, least)) > before > 0
    assert wrong.draft(9, least) == []


def test_rates_recover_without_a_single_draft() -> None:
    """Predictions are scored whether they were sent as drafts or not."""
    made = history([1, 2, 3])
    for index in range(60):
        made.extend(as_array([1, 2, 50 + index]))
    for _ in range(30):
        made.extend(as_array([1, 2, 3, 4]))
    assert len(made.draft(5, 0.5)) == 5


def test_the_index_of_a_long_sequence_stays_bounded() -> None:
    """More tokens than places: older n-grams are overwritten, and what is found is right."""
    chance = random.Random(1)
    tokens = [chance.randrange(1000) for _ in range(3000)]
    made = History(2, 3, 1024)
    made.extend(as_array(tokens[:1500]))
    made.extend(as_array([*tokens[1500:], 2000, 2001, 2002, 2003, 2000, 2001]))
    assert made.draft(2, 0.0) == [2002, 2003]
    assert sum(len(places) for places in made._places) == 2 * 1024


def test_many_tokens_at_once_and_one_by_one_give_the_same_index() -> None:
    chance = random.Random(2)
    tokens = [chance.randrange(50_000) for _ in range(400)]
    at_once, singly = history(tokens), History(2, 4, PLACES)
    for token in tokens:
        singly.extend(as_array([token]))
    assert at_once._places == singly._places


def test_a_draft_must_be_more_probable_the_more_rows_a_step_has() -> None:
    needed = [least_probability(rows) for rows in (1, 2, 8, 32, 256)]
    assert needed == sorted(needed)
    assert 0 < needed[0] < 0.3
    assert 0.95 < needed[-1] < 1


def turn(slot: int, tokens: list[int], most: int = 3) -> Turn:
    return Turn(slot, as_array(tokens), most)


def test_each_slot_has_its_own_tokens_until_it_is_freed() -> None:
    proposer = NgramProposer(2, 4, 100)
    for slot in (0, 3):
        proposer.open(slot)
    loop = [1, 2, 3, 4] * 5
    assert proposer.propose([turn(3, [7, 8, 9]), turn(0, loop)]) == [[], [1, 2, 3]]
    assert proposer.propose([turn(0, [*loop, 1, 2])]) == [[3, 4, 1]]
    proposer.free(0)
    proposer.open(0)
    assert proposer.propose([turn(0, [5, 6, 7])]) == [[]]


def test_many_slots_at_once_get_fewer_drafts() -> None:
    """The same match must be more probable the more rows a step has."""
    text = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]
    lengths = []
    for num_slots in (1, 2, 64):
        proposer = NgramProposer(2, 4, 100)
        for slot in range(num_slots):
            proposer.open(slot)
        proposals = proposer.propose([turn(slot, text, 5) for slot in range(num_slots)])
        assert len({len(proposal) for proposal in proposals}) == 1
        lengths.append(len(proposals[0]))
    assert lengths[0] > lengths[1] > lengths[2] == 0
