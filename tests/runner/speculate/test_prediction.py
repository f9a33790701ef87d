"""A prediction is followed from its beginning, and found again where the answer departs from it."""

from __future__ import annotations

import random
import sys
from array import array
from itertools import pairwise

import pytest

from octavo.runner.speculate import prediction as module
from octavo.runner.speculate.prediction import PredictedText, PredictedTexts, Prediction

TEXT = list(range(100, 160))


def prediction(text: list[int] | None = None) -> Prediction:
    return Prediction(PredictedText(array("i", TEXT if text is None else text)), 7)


def next_of(made: Prediction, most: int = 4) -> list[int]:
    found = made.draft(most)
    assert len(found.tokens) == len(found.chances)
    assert list(found.chances) == sorted(found.chances, reverse=True)
    return [*found.tokens]


def after(answer: list[int], text: list[int] | None = None, most: int = 4) -> list[int]:
    made = prediction(text)
    made.extend(answer)
    assert made.num_known == 7 + len(answer)
    return next_of(made, most)


def test_the_answer_begins_where_the_text_begins() -> None:
    assert after([]) == TEXT[:4]
    assert after(TEXT[:5]) == TEXT[5:9]


def test_there_is_nothing_behind_the_end() -> None:
    assert after(TEXT[:-2]) == TEXT[-2:]
    assert after(TEXT) == []
    assert after([], text=[8]) == [8]
    assert after([8], text=[8]) == []
    assert after([9], text=[8]) == []


def test_one_token_in_place_of_another() -> None:
    assert after([*TEXT[:5], 1]) == TEXT[6:10]
    assert after([*TEXT[:5], 1, *TEXT[6:8]]) == TEXT[8:12]


def test_tokens_that_were_put_in() -> None:
    answer = [*TEXT[:5], 1, 2, 3]
    assert after(answer) == []
    assert after([*answer, TEXT[5]]) == TEXT[6:10]
    assert after([*answer, TEXT[5], TEXT[6]]) == TEXT[7:11]


@pytest.mark.parametrize("count", [1, 5, 30])
def test_tokens_that_were_left_out(count: int) -> None:
    """One token finds the place a few tokens on."""
    assert after([*TEXT[:5], TEXT[5 + count]]) == TEXT[6 + count : 10 + count]


def test_a_place_far_on_is_found_by_two_tokens() -> None:
    assert after([*TEXT[:3], *TEXT[50:51]])[:1] != TEXT[51:52]
    assert after([*TEXT[:3], *TEXT[50:52]]) == TEXT[52:56]


def test_a_place_before_the_lost_one_is_found_too() -> None:
    assert after([*TEXT[:40], *TEXT[10:12]]) == TEXT[12:16]


def test_of_several_places_the_one_with_the_longest_match_counts() -> None:
    text = [1, 2, 3, 50, 9, 2, 3, 51, 8, 2, 3, 52, 7, 2, 3, 53]
    assert after([99, 8, 2, 3], text=text, most=1) == [52]
    assert after([1, 2, 3, 50, 98, 2, 3], text=text, most=1) == [51], "the first behind"


def test_chances_fall_where_the_text_is_wrong_and_rise_where_it_is_right() -> None:
    chance = random.Random(1)
    wrong, right = prediction(TEXT * 9), prediction(TEXT * 9)
    first = sum(right.draft(8).chances)
    right.extend((TEXT * 9)[:300])
    for _ in range(100):
        place = chance.randrange(len(TEXT) - 2)
        wrong.extend([*TEXT[place : place + 2], 1])
    wrong.extend(TEXT[5:7])
    assert sum(wrong.draft(8).chances) < 0.3 * first
    assert sum(right.draft(8).chances) > 1.2 * first


def test_random_edits_are_followed() -> None:
    """Most of what follows is foreseen in texts with an edit in ten tokens."""
    for seed in range(20):
        chance = random.Random(seed)
        text = [chance.randrange(60) for _ in range(300)]
        made = prediction(text)
        answer: list[int] = []
        for token in text:
            edit = chance.random()
            if edit > 0.1:
                answer.append(token)
            elif edit > 0.05:
                answer += [chance.randrange(60) for _ in range(chance.randrange(4))]
        num_right = 0
        for token in answer:
            num_right += next_of(made, 1) == [token]
            made.extend([token])
        assert num_right > 0.7 * len(answer)


def test_a_text_is_kept_once_for_all_answers_that_follow_it() -> None:
    texts = PredictedTexts()
    first, second = texts.find(array("i", TEXT)), texts.find(array("i", TEXT))
    assert first is not None
    assert first is second
    assert texts.find(array("i", TEXT[1:])) is not first


@pytest.mark.parametrize("vocabulary", [3, 40_000, 1 << 16, 200_000, 2**31 - 1])
@pytest.mark.parametrize("count", [0, 1, 2, 500])
def test_pairs_are_in_order_and_equal_ones_as_in_the_text(vocabulary: int, count: int) -> None:
    tokens = [random.Random(vocabulary + count).randrange(vocabulary) for _ in range(count)]
    text = PredictedText(array("i", tokens))
    expected = sorted((*pair, at) for at, pair in enumerate(pairwise(tokens), 2))
    assert text.keys.tolist() == [first << 32 | second for first, second, _ in expected]
    assert text.places.tolist() == [at for _, _, at in expected]


def test_a_text_takes_seventeen_bytes_for_each_token() -> None:
    text = PredictedText(array("i", range(10_000)))
    parts = (text.tokens, text.keys, text.places)
    assert sum(map(sys.getsizeof, parts)) < 17 * 10_000 + 1000


def test_all_texts_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that has no room is not followed; it has room again when another one has gone."""
    monkeypatch.setattr(module, "MOST_TOKENS", 2 * len(TEXT))
    texts = PredictedTexts()
    kept = [texts.find(array("i", TEXT)), texts.find(array("i", TEXT[::-1]))]
    assert None not in kept
    assert texts.find(array("i", [1])) is None
    assert texts.find(array("i", TEXT)) is kept[0]
    del kept[1]
    assert texts.find(array("i", [1])) is not None


def test_an_answer_that_goes_on_is_read_from_its_last_tokens_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The place is found near the same place of the text, which has each page many times."""
    read: list[int] = []
    extend = Prediction.extend

    def counted(self: Prediction, new: array[int]) -> None:
        read.append(len(new))
        extend(self, new)

    monkeypatch.setattr(Prediction, "extend", counted)
    chance = random.Random(3)
    page = [chance.randrange(9000) for _ in range(400)]
    pages = array("i", [token for number in range(20) for token in (*page, number)])
    text = PredictedText(pages)
    for length in (module.MOST_REPLAYED, 401 * 13 + 398):
        made = Prediction(text, 7, pages[:length])
        assert made.num_known == 7 + length
        assert next_of(made, 6) == pages[length : length + 6].tolist()
    assert next_of(Prediction(text, 7, array("i", [9999] * 9999))) == []
    assert read == [module.MOST_REPLAYED] * 3
