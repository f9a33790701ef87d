"""Tests of the parsers on transcripts, whole and cut at any place."""

from __future__ import annotations

import random
import re

import pytest

from tests.formats.transcript import Transcript, transcripts

CASES = [
    pytest.param(case, id=f"{case.tools}-{case.reasoning}-{case.name}") for case in transcripts()
]


@pytest.mark.parametrize("case", CASES)
def test_a_transcript_gives_its_message(case: Transcript) -> None:
    """A parser finds the message in the whole text of an answer."""
    assert case.message([case.raw]) == case.expected


@pytest.mark.parametrize("case", CASES)
def test_any_cut_gives_the_same_message(case: Transcript) -> None:
    """The message does not depend on how its text is cut, in characters or at marks."""
    marks = "|".join(map(re.escape, sorted(case.formats.marks, key=len, reverse=True)))
    assert case.message(re.split(f"({marks})", case.raw)) == case.expected
    for size in range(1, 12):
        cut = [case.raw[at : at + size] for at in range(0, len(case.raw), size)]
        assert case.message(cut) == case.expected
    source = random.Random(case.name)
    for _ in range(20):
        ends = sorted(source.choices(range(len(case.raw) + 1), k=source.randrange(1, 9)))
        cut = [case.raw[a:b] for a, b in zip([0, *ends], [*ends, len(case.raw)], strict=True)]
        assert case.message(cut) == case.expected


@pytest.mark.parametrize("case", CASES)
def test_an_answer_may_end_anywhere(case: Transcript) -> None:
    """An answer that is cut short gives one message, whether it comes whole or in characters."""
    for end in range(len(case.raw)):
        text = case.raw[:end]
        assert case.message(list(text)) == case.message([text]), text
