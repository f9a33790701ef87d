"""Suffix decoding finds what followed the same tokens, and shares answers within a scope only."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from octavo.options.speculation import SpeculativeConfig
from octavo.runner.speculate import suffix
from octavo.runner.speculate.corpus import MOST_PLACES, Corpus
from octavo.runner.speculate.proposer import Turn
from octavo.runner.speculate.suffix import SuffixProposer, make
from tests.runner.plans import new_slot


def as_array(tokens: list[int]) -> Any:
    return np.array(tokens, np.int32)


def corpus(tokens: list[int], num_hashes: int = 1 << 10) -> Corpus:
    made = Corpus(num_hashes)
    made.extend(as_array(tokens))
    return made


@pytest.mark.parametrize("num_hashes", [4, 1 << 10])
def test_many_tokens_at_once_and_one_by_one_give_the_same_index(num_hashes: int) -> None:
    for seed in range(20):
        chance = random.Random(seed)
        tokens = [chance.randrange(6) for _ in range(200)]
        singly = Corpus(num_hashes)
        for token in tokens:
            singly.append(token)
        cut = chance.randrange(200)
        parts = corpus(tokens[:cut], num_hashes)
        parts.extend(as_array(tokens[cut:]))
        for name in ("tokens", "_before", "_last"):
            assert getattr(parts, name) == getattr(singly, name)


def searched(text: list[int], longest: int) -> tuple[list[int], int]:
    """Return the places behind the longest part of a text's end, by a search through all of it."""
    for length in range(min(longest, len(text) - 1), 1, -1):
        found = [
            end
            for end in range(len(text) - 1, length - 1, -1)
            if text[end - length : end] == text[-length:]
        ]
        if found:
            return [end + 1 for end in found[:MOST_PLACES]], length  # behind the first mark
    return [], 2


@pytest.mark.parametrize("longest", [2, 5, 24])
def test_the_places_are_those_that_a_search_through_all_tokens_finds(longest: int) -> None:
    for seed in range(60):
        chance = random.Random(seed)
        tokens = [chance.randrange(5 + seed % 9) for _ in range(chance.randrange(3, 60))]
        made = corpus(tokens)
        places, length = made.find(made.tokens[-min(longest, len(tokens)) :], longest)
        right, most = searched(tokens, longest)
        assert (places, length if places else 2) == (right, most)


def proposer(**settings: Any) -> SuffixProposer:
    chosen: dict[str, Any] = {"num_speculative_tokens": 8, **settings}
    return make(SpeculativeConfig("suffix", **chosen), 1000)


def proposed(made: SuffixProposer, slot: int, tokens: list[int], most: int = 8) -> list[int]:
    (found,) = made.propose([Turn(slot, as_array(tokens), most)])
    assert len(found.tokens) == len(found.chances)
    assert list(found.chances) == sorted(found.chances, reverse=True)
    return [*found.tokens]


def test_what_most_often_followed_is_proposed() -> None:
    made = proposer()
    made.open(new_slot(0, [1], ()))
    text = [1, 2, 3, 9, 1, 2, 4, 9, 1, 2, 3, 8, 1, 2]
    assert proposed(made, 0, text)[:1] == [3], "twice of three times"
    made.open(new_slot(1, [1], ()))
    assert proposed(made, 1, [1, 2, 3, 9, 7, 2, 4, 9, 7, 2, 4, 8, 1, 2])[:1] == [3]


def test_a_loop_goes_on_through_its_own_drafts() -> None:
    made = proposer()
    made.open(new_slot(0, [1], ()))
    assert proposed(made, 0, [9, 1, 2, 3, 1, 2, 3, 1, 2, 3], most=5) == [1, 2, 3, 1, 2]
    made.open(new_slot(1, [1], ()))
    assert proposed(made, 1, [5] * 8, most=3) == [5, 5, 5]


def answer(made: SuffixProposer, tokens: list[int], scope: str = "") -> None:
    """Let a request answer with these tokens."""
    made.open(new_slot(9, [77], (), cache_scope=scope))
    made.propose([Turn(9, as_array([77, *tokens]), 8)])
    made.free(9)


PHRASE = [10, 11, 12, 13, 14, 15, 16]


@pytest.mark.parametrize(("scope", "is_shared"), [("a", True), ("b", False), ("", False)])
def test_answers_are_found_in_their_own_scope_only(scope: str, is_shared: bool) -> None:
    made = proposer(suffix_decoding_max_spec_factor=2.0)
    answer(made, PHRASE, "a")
    made.open(new_slot(0, [77], (), cache_scope=scope))
    assert proposed(made, 0, [77, 10, 11, 12], most=3) == ([13, 14, 15] if is_shared else [])


def test_nothing_that_was_answered_before_is_shared_after_it_was_forgotten() -> None:
    made = proposer(suffix_decoding_max_spec_factor=2.0)
    answer(made, PHRASE)
    made.open(new_slot(0, [77], ()))
    made.open(new_slot(1, [77], ()))
    assert proposed(made, 0, [77, 10, 11, 12], most=3) == [13, 14, 15]
    assert proposed(made, 1, [77, 20, 21, 22, 23]) == []
    made.forget()
    assert proposed(made, 0, [77, 10, 11, 12, 13], most=3) == []
    assert proposed(made, 1, [77, 20, 21, 22, 23, 30, 31, 32]) == []
    made.free(1)
    made.open(new_slot(1, [77], ()))
    assert proposed(made, 1, [77, 20, 21]) == []
    assert proposed(made, 1, [77, 20, 21, 30, 31], most=1) == [32]


def test_drafts_are_no_more_than_the_factor_allows() -> None:
    made = proposer(suffix_decoding_max_spec_factor=0.5)
    answer(made, PHRASE)
    made.open(new_slot(0, [77], ()))
    assert proposed(made, 0, [78, 10, 11]) == [12]
    assert proposed(made, 0, [78, 10, 11, 12, 13]) == [14, 15]


def test_improbable_drafts_are_left_out() -> None:
    made = proposer(suffix_decoding_min_token_prob=0.99)
    answer(made, PHRASE)
    made.open(new_slot(0, [77], ()))
    assert proposed(made, 0, [78, 10, 11]) == []


def test_no_answers_are_kept_if_so_asked() -> None:
    made = proposer(suffix_decoding_max_cached_requests=0)
    answer(made, PHRASE)
    made.open(new_slot(0, [77], ()))
    assert proposed(made, 0, [78, 10, 11]) == []


def test_what_a_sequence_knew_at_its_opening_is_added_once() -> None:
    """A sequence that was preempted comes again with its output."""
    made = proposer()
    for known in ([77], [77, *PHRASE[:4]]):
        made.open(new_slot(0, known, (), num_prompt=1))
        made.propose([Turn(0, as_array([77, *PHRASE[: 4 if len(known) == 1 else 7]]), 0)])
        made.free(0)
    (answers,) = made._scopes.values()
    assert answers.corpus.tokens.tolist() == [-1, 10, 11, 12, 13, -1, 14, 15, 16, -1]


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MOST_SCOPES", 3)
    monkeypatch.setattr(suffix, "MOST_TOKENS", 100)
    made = proposer(suffix_decoding_max_cached_requests=7)
    for number in range(30):
        answer(made, [number, *PHRASE], str(number % 5))
        answer(made, [100 + number] * 60, "long")
    assert len(made._scopes) == 3
    for answers in made._scopes.values():
        assert len(answers.corpus.tokens) <= 101
        assert sum(answers._lengths) == len(answers.corpus.tokens) - 1
    for number in range(20):
        answer(made, [number], "many")
    assert len(made._scopes["many"]._lengths) <= 7


def test_an_open_text_keeps_no_answers_of_a_scope_that_was_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(suffix, "MOST_SCOPES", 2)
    made = proposer(suffix_decoding_max_spec_factor=2.0)
    answer(made, PHRASE, "a")
    made.open(new_slot(0, [77], (), cache_scope="a"))
    assert proposed(made, 0, [77, 10, 11], most=1) == [12]
    answers = made._slots[0].answers
    for scope in ("b", "c"):
        answer(made, PHRASE, scope)
    assert proposed(made, 0, [77, 10, 11, 12, 20, 21, 22], most=1) == []
    made.free(0)
    assert answers.corpus.tokens.tolist() == [-1]
    made.open(new_slot(0, [77], (), cache_scope="a"))
    assert proposed(made, 0, [77, 10, 11], most=1) == []


def test_places_of_forgotten_answers_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suffix, "MOST_TOKENS", 40)
    made = proposer()
    answer(made, PHRASE)
    made.open(new_slot(0, [77], ()))
    assert proposed(made, 0, [77, 10, 11])[:1] == [12]
    for number in range(6):
        answer(made, [200 + number] * 9)
    assert proposed(made, 0, [77, 10, 11, 12]) == []


def test_votes_that_are_wrong_are_trusted_less() -> None:
    made = proposer(suffix_decoding_min_token_prob=0.0)
    made.open(new_slot(0, [1], ()))
    text = [1, 2, 3]
    made.propose([Turn(0, as_array(text), 8)])
    for index in range(40):
        text += [1, 2, 50 + index]
        made.propose([Turn(0, as_array(text), 8)])
    text += [1, 2]
    (found,) = made.propose([Turn(0, as_array(text), 8)])
    assert sum(found.chances) < 0.1
