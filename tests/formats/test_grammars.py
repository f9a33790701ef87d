"""Tests that what a format writes, its grammar allows, and its parser reads agree."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Struct, convert

from octavo.formats.description import Formats
from octavo.formats.grammar import calls_grammar
from octavo.formats.parser import make_parser
from octavo.formats.protocol import Call, Tool
from octavo.formats.registry import choose, tool_format, tool_names
from octavo.formats.rendering import write_calls
from tests.formats.transcript import TOOLS, Message, message_of
from tests.formats.vocabulary import Vocabulary

# In some vocabularies marks are special tokens, in others they are text.
SPECIAL = [
    mark
    for name in tool_names()
    for mark in tool_format(name).marks
    if re.fullmatch(r"<[^ =]*>|\[[A-Z_/]+\]", mark)
]
HARMONY = ["<|channel|>", "<|start|>", "<|end|>", "<|return|>", "<|constrain|>"]
PLAIN, RICH = Vocabulary(), Vocabulary([*SPECIAL, *HARMONY, "｜DSML｜", "<think>", "</think>"])
VOCABULARIES = pytest.mark.parametrize("vocabulary", [PLAIN, RICH], ids=["plain", "special"])
FORMATS = pytest.mark.parametrize("name", tool_names())

WORDS = st.text("ab \"'\\/<>{}[]=,:é\n", max_size=8).filter(lambda text: text == text.strip())
ARGUMENTS = st.fixed_dictionaries(
    {"city": WORDS},
    optional={
        "days": st.integers(-99, 99),
        "metric": st.booleans(),
        "at": st.fixed_dictionaries({"lat": st.floats(-9, 9).map(lambda value: round(value, 2))}),
        "tags": st.lists(WORDS, max_size=3),
        "note": st.none() | WORDS.filter(lambda text: text not in ("null", "None")),
    },
)


def formats_of(name: str) -> Formats:
    """Return a tool format with the reasoning format that it needs."""
    return choose("", (), tools=name)


def message(formats: Formats, pieces: Sequence[str], prompt_end: str = "") -> Message:
    """Return the message that a parser finds."""
    parser = make_parser(formats, TOOLS, prompt_end=prompt_end)
    deltas = [delta for piece in pieces for delta in parser.feed(piece, False)]
    return message_of([*deltas, *parser.feed("", True)])


def arguments_of(found: Message) -> list[tuple[str, object]]:
    """Return the names and the arguments of the calls."""
    return [(call.name, json.loads(call.arguments)) for call in found.calls]


@FORMATS
@settings(max_examples=20, deadline=None)
@given(first=ARGUMENTS, size=st.integers(1, 20))
def test_a_parser_reads_what_its_format_writes(
    name: str, first: dict[str, object], size: int
) -> None:
    """Written calls are read again with the same arguments, however the text is cut."""
    formats = formats_of(name)
    assert formats.tools is not None
    calls = [Call("get_weather", json.dumps(first)), Call("now", "{}")]
    text = write_calls(formats.tools, calls)
    found = message(formats, [text[at : at + size] for at in range(0, len(text), size)])
    assert arguments_of(found) == [("get_weather", first), ("now", {})]
    assert not found.text


@FORMATS
@VOCABULARIES
@pytest.mark.parametrize("choice", ["required", "auto"])
def test_a_grammar_allows_what_its_format_writes(
    name: str, vocabulary: Vocabulary, choice: Literal["auto", "required"]
) -> None:
    """A grammar allows right calls, and neither a wrong type nor an unknown function."""
    formats = formats_of(name)
    assert formats.tools is not None
    tools = [Tool(tool.name, tool.parameters, strict=True) for tool in TOOLS]
    grammar = calls_grammar(formats, tools, choice, tokens=vocabulary.ids)

    def written(function: str, **arguments: object) -> str:
        assert formats.tools is not None
        text = write_calls(formats.tools, [Call(function, json.dumps(arguments))])
        for stop in formats.tools.stops:
            text = text.removesuffix(stop)
        return text

    right = written("get_weather", city="Paris", days=2, metric=True, tags=["a", "b"])
    assert vocabulary.allows(grammar, right)
    assert vocabulary.allows(grammar, written("get_weather", city="Pa", note=None))
    assert vocabulary.allows(grammar, written("get_time", zone="UTC"))
    assert vocabulary.allows(grammar, written("get_time"))
    assert not vocabulary.allows(grammar, written("get_weather", city="Paris", days=[]))
    assert not vocabulary.allows(grammar, written("get_weather", days=2))
    assert not vocabulary.allows(grammar, written("unknown", city="Paris"))
    assert not vocabulary.allows(grammar, right[: len(right) // 2])


class Weather(Struct):
    """The arguments of the first tool."""

    city: str
    days: int = 0
    metric: bool = False
    at: dict[str, object] = {}
    tags: list[str] = []
    note: str | None = None


class Time(Struct):
    """The arguments of the second tool."""

    zone: str = ""


ARGUMENTS_OF = {"get_weather": Weather, "get_time": Time, "now": dict[str, object]}


@FORMATS
@pytest.mark.parametrize("is_special", [False, True])
def test_every_text_of_a_grammar_is_calls_with_right_arguments(name: str, is_special: bool) -> None:
    """Text that a grammar allows is read as calls, and their arguments match the tools' schemas."""
    formats = formats_of(name)
    # The marks of gpt-oss are always special tokens.
    is_special = is_special or name == "openai"
    vocabulary = RICH if is_special else Vocabulary((), formats.marks)
    grammar = calls_grammar(formats, TOOLS, "required", tokens=vocabulary.ids)
    source = random.Random(name)
    texts = [text for _ in range(8) if (text := vocabulary.walk(grammar, source))]
    assert texts, "some walk ends"
    for text in texts:
        found = message(formats, [text])
        assert found.calls, text
        assert not found.text, text
        for call in found.calls:
            json.loads(call.arguments)
            convert(json.loads(call.arguments), ARGUMENTS_OF[call.name])
