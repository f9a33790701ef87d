"""Tests that what a format writes, its grammar allows, and its parser reads agree."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from llguidance import LLMatcher, LLTokenizer

from octavo.formats.description import Formats
from octavo.formats.grammar import after_thinking, calls_grammar
from octavo.formats.parser import make_parser
from octavo.formats.protocol import Call, FormatError, Tool
from octavo.formats.registry import choose, reasoning_names, tool_names
from octavo.formats.rendering import write_calls
from tests.formats.transcript import TOOLS, Message, message_of

END = "<end of text>"
SPECIAL = (
    "<tool_call> </tool_call> <think> </think> <|tool_call|> <|python_tag|> <|action_start|> "
    "<|action_end|> <|plugin|> [TOOL_CALLS] [ARGS] [CALL_ID] <｜tool▁calls▁begin｜> "
    "<｜tool▁calls▁end｜> <｜tool▁call▁begin｜> <｜tool▁call▁end｜> <｜tool▁sep｜> "
    "<|tool_calls_section_begin|> <|tool_calls_section_end|> <|tool_call_begin|> <|tool_call_end|> "
    "<|tool_call_argument_begin|> <|channel|> <|message|> <|constrain|> <|start|> <|end|> "
    "<arg_key> </arg_key> <arg_value> </arg_value> <minimax:tool_call> </minimax:tool_call> ｜DSML｜ "
    "<seed:tool_call> </seed:tool_call> <|python_start|> <|python_end|> <|START_ACTION|> "
    "<|END_ACTION|> <|START_THINKING|> <|END_THINKING|> <|START_RESPONSE|> <|END_RESPONSE|> "
    "<|tool_call_start|> <|tool_call_end|> <start_function_call> <end_function_call> <escape> "
    '<|tool_call> <tool_call|> <|"|> <|channel> <channel|> [THINK] [/THINK]'
).split()


class Vocabulary:
    """All bytes, and some special tokens, as llguidance reads a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, special: Sequence[str]) -> None:
        names = [*dict.fromkeys(special), END]
        self.tokens = [bytes([value]) for value in range(256)] + [name.encode() for name in names]
        self.special_token_ids = list(range(256, len(self.tokens)))
        self.eos_token_id = self.special_token_ids[-1]
        self.ids = {name: 256 + index for index, name in enumerate(names)}
        self.by_length = sorted(self.ids, key=len, reverse=True)
        self.llguidance = LLTokenizer(self, eos_token=self.eos_token_id)

    def __call__(self, text: str) -> list[int]:
        return list(text.encode())

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text, in which special tokens are recognised."""
        ids: list[int] = []
        while text:
            name = next((name for name in self.by_length if text.startswith(name)), "")
            ids += [self.ids[name]] if name else text[0].encode()
            text = text[len(name) or 1 :]
        return ids

    def matcher(self, grammar: str | None) -> LLMatcher:
        """Return the state at the beginning of this grammar."""
        assert grammar is not None
        matcher = LLMatcher(self.llguidance, grammar, log_level=0)
        assert not matcher.is_error(), f"{matcher.get_error()}\n{grammar}"
        return matcher

    def allows(self, grammar: str | None, text: str) -> bool:
        """Return whether a grammar allows this text, to its end."""
        ids = [*self.encode(text), self.eos_token_id]
        return self.matcher(grammar).validate_tokens(ids) == len(ids)


PLAIN, RICH = Vocabulary(()), Vocabulary(SPECIAL)
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
@settings(max_examples=40, deadline=None)
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
    name: str, vocabulary: Vocabulary, choice: str
) -> None:
    """A grammar allows right calls, and neither a wrong type nor an unknown function."""
    formats = formats_of(name)
    assert formats.tools is not None
    tools = [Tool(tool.name, tool.parameters, strict=True) for tool in TOOLS]
    which = "required" if choice == "required" else "auto"
    grammar = calls_grammar(formats, tools, which, tokens=vocabulary.ids)

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
