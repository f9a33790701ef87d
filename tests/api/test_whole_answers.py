"""Whole answers are read while they come: their end is no long work, and they say the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import repeat
from pathlib import Path

import pytest

from octavo.api import reading as reading_module
from octavo.api.continuation import MOST_UNREAD, Continuation
from octavo.api.reading import MOST_FRESH, Reading
from octavo.core.request import TokenEvent
from octavo.core.sampling_params import RequestOutputKind, SamplingParams
from octavo.formats.deltas import (
    Delta,
    FinishDelta,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from octavo.text.detokenizer import Detokenizer
from octavo.text.token_table import TokenTable, unpack
from octavo.text.tokenizer_files import tokenizer_from_directory
from tests.api.tiny import make_model

NUM_TOKENS = 6_200
READINGS: dict[str, Callable[[], Reading | None]] = {
    "text alone": lambda: None,
    "a parser": lambda: Reading(Changing),
    "a parser whose deltas stay apart": lambda: Reading(Changing, keeps_apart=True),
}


class Changing:
    """A parser that goes from reasoning to calls and text, by the text so far."""

    num_fed = 0

    def __init__(self) -> None:
        self._length = 0

    @property
    def is_reasoning(self) -> bool:
        return self._length % 1000 < 300

    def feed(self, text: str, is_last: bool) -> list[Delta]:
        type(self).num_fed += 1
        made: list[Delta] = []
        for each in text:
            self._length += 1
            index, place = divmod(self._length, 1000)
            if place < 300:
                made.append(ReasoningDelta(each))
            elif place < 600:
                made.append(ToolCallDelta(index, each, "f" if place == 300 else None))
            else:
                made.append(TextDelta(each))
        return made


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> TokenTable:
    directory: Path = make_model(tmp_path_factory.mktemp("tiny"))
    return unpack(tokenizer_from_directory(directory).pack())


def events(reason: str, sizes: Iterator[int]) -> Iterator[TokenEvent]:
    """Yield the same tokens in events of these sizes."""
    chance = random.Random(7)
    tokens = tuple(chance.randrange(3, 250) for _ in range(NUM_TOKENS))
    at = 0
    while at < NUM_TOKENS:
        part = tokens[at : at + next(sizes)]
        is_last = at + len(part) == NUM_TOKENS
        yield TokenEvent("r", at, part, reason if is_last else None)  # type: ignore[arg-type]
        at += len(part)


def sizes(seed: int) -> Iterator[int]:
    """Yield sizes of events, small ones or larger ones by the seed."""
    chance = random.Random(seed)
    while True:
        yield chance.randrange(1, 2 + 400 * seed)


def answer(table: TokenTable, kind: RequestOutputKind, reading: Reading | None) -> Continuation:
    sampling = SamplingParams(max_tokens=NUM_TOKENS, output_kind=kind)
    return Continuation(0, [5], sampling, table, reading)


def said(deltas: Sequence[Delta]) -> list[Delta]:
    """Return deltas with neighbours of one kind joined."""
    *others, end = deltas
    assert isinstance(end, FinishDelta)
    return [*reading_module._joined(others), end]


@pytest.mark.parametrize("reason", ["length", "stop"])
@pytest.mark.parametrize("name", READINGS)
def test_a_whole_answer_says_the_same_however_its_tokens_come(
    table: TokenTable, name: str, reason: str
) -> None:
    stream = answer(table, RequestOutputKind.DELTA, READINGS[name]())
    parts = []
    for event in events(reason, repeat(1)):
        stream.push(event)
        parts.append(stream.take())
    text = "".join([each.text for each in parts])
    deltas = said([delta for each in parts for delta in each.deltas])
    num_reasoning = sum([each.num_reasoning_tokens for each in parts])
    for seed in range(4):
        whole = answer(table, RequestOutputKind.FINAL_ONLY, READINGS[name]())
        for event in events(reason, sizes(seed)):
            whole.push(event)
        made = whole.everything()
        assert (made.text, made.num_reasoning_tokens) == (text, num_reasoning)
        assert said(made.deltas) == deltas


@pytest.mark.parametrize("name", READINGS)
def test_no_event_of_a_whole_answer_is_long_work(
    table: TokenTable, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counts the tokens that are decoded, and the deltas that are joined, in one piece."""
    decoded: list[int] = []
    joined: list[int] = []
    push_all, join = Detokenizer.push_all, reading_module._joined

    def counting(self: Detokenizer, token_ids: Sequence[int]) -> str:
        decoded.append(len(token_ids))
        return push_all(self, token_ids)

    def counted(deltas: Sequence[Delta]) -> Iterator[Delta]:
        joined.append(len(deltas))
        return join(deltas)

    monkeypatch.setattr(Detokenizer, "push_all", counting)
    monkeypatch.setattr(reading_module, "_joined", counted)
    whole = answer(table, RequestOutputKind.FINAL_ONLY, READINGS[name]())
    for event in events("length", repeat(1)):
        Changing.num_fed = 0
        whole.push(event)
        assert Changing.num_fed <= 2
    assert len(whole.everything().text) > NUM_TOKENS // 2
    assert max(decoded, default=0) <= MOST_UNREAD
    assert max(joined, default=0) <= 2 * MOST_FRESH
