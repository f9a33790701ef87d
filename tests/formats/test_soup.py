"""Tests of parsers with text that is no call, or broken in any way."""

from __future__ import annotations

import random
import re

import pytest

from octavo.formats.deltas import Delta, PlainText, TextDelta, ToolCallDelta
from octavo.formats.description import write_calls
from octavo.formats.parser import make_parser
from octavo.formats.protocol import Call
from octavo.formats.reader import MAX_HELD_CHARACTERS
from octavo.formats.registry import choose, reasoning_names, tool_names
from tests.formats.transcript import TOOLS, Message, message_of

FRAGMENTS = [
    "now",
    "get_time",
    "{",
    "}",
    "[",
    "]",
    '"',
    "\\",
    ":",
    ",",
    "(",
    ")",
    "=",
    "'",
    " ",
    "\n",
]
FRAGMENTS += [
    '{"name": "now", ',
    '"arguments": ',
    '"parameters": {}',
    "zone",
    "é",
    "<",
    ">",
    "x = 1",
]
PAIRS = [(name, None) for name in tool_names()] + [("hermes", name) for name in reasoning_names()]


def soup(fragments: list[str], source: random.Random) -> str:
    """Return a text of random fragments, in which whole calls and broken ones are likely."""
    return "".join(source.choices(fragments, k=source.randrange(40)))


def message(tools: str, reasoning: str | None, pieces: list[str]) -> Message:
    """Return the message in a text that comes in these pieces."""
    parser = make_parser(choose("", (), tools=tools, reasoning=reasoning), TOOLS)
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += parser.feed(piece, False)
    return message_of([*deltas, *parser.feed("", True)])


@pytest.mark.parametrize(("tools", "reasoning"), PAIRS)
def test_broken_text_gives_one_message_however_it_is_cut(tools: str, reasoning: str | None) -> None:
    """A parser raises for no text, and no cut changes the message."""
    formats = choose("", (), tools=tools, reasoning=reasoning)
    assert formats.tools is not None
    call = write_calls(formats.tools, [Call("now", "{}"), Call("get_time", '{"zone": "UTC"}')])
    parts = re.findall(r"\w+|\W", call)
    fragments = [*FRAGMENTS, *formats.marks, *formats.marks, call, *parts, call[: len(call) // 2]]
    source = random.Random(tools)
    for _ in range(120):
        text = soup(fragments, source)
        whole = message(tools, reasoning, [text])
        assert message(tools, reasoning, list(text)) == whole, text
        size = source.randrange(2, 12)
        cut = [text[at : at + size] for at in range(0, len(text), size)]
        assert message(tools, reasoning, cut) == whole, text


@pytest.mark.parametrize("size", [1000, 4096, MAX_HELD_CHARACTERS, 10**6])
def test_what_cannot_be_a_call_is_not_held_back_for_ever(size: int) -> None:
    """The beginning of a call that grows beyond the limit becomes text, at the same place."""
    text = '<tool_call>{"key": "' + "x" * (2 * MAX_HELD_CHARACTERS)
    text += '<tool_call>{"name": "now"}</tool_call>'
    parser = make_parser(choose("", (), tools="hermes"), TOOLS)
    deltas: list[Delta] = []
    for at in range(0, len(text), size):
        deltas += parser.feed(text[at : at + size], False)
    found = message_of(deltas)  # without the end of the answer
    assert found.text == text[: text.rindex("<tool_call>")]
    assert [call.name for call in found.calls] == ["now"]


def test_a_call_is_sent_as_it_grows() -> None:
    """The name comes as soon as it is known, and the arguments with every piece."""
    parser = make_parser(choose("", (), tools="hermes"), TOOLS)
    assert not parser.feed('<tool_call>{"name": "no', False)
    assert not parser.feed('w", "arguments"', False)
    assert parser.feed(': {"a', False) == [ToolCallDelta(0, '{"a', "now")]
    assert parser.feed('": 1', False) == [ToolCallDelta(0, '": 1')]
    assert parser.feed("}}</tool", False) == [ToolCallDelta(0, "}")]
    assert not parser.feed("_call>", False)
    assert not parser.feed("", True)


@pytest.mark.parametrize("tools", ["hermes", "llama3_json", "mistral", "pythonic", "qwen3_coder"])
def test_a_required_call_that_is_cut_leaves_no_text(tools: str) -> None:
    """Neither a part of its mark nor one of its name is text; then the call has begun."""
    formats = choose("", (), tools=tools)
    assert formats.tools is not None
    whole = write_calls(formats.tools, [Call("now", '{"a": "b"}')])
    for end in range(len(whole) + 1):
        found = message_of(make_parser(formats, TOOLS, must_call=True).feed(whole[:end], True))
        assert not found.text
        assert len(found.calls) <= 1
    assert [call.name for call in found.calls] == ["now"]


def test_text_is_sent_at_once_unless_it_may_be_a_mark() -> None:
    """Text waits only while it may still become a mark, or white space before a call."""
    parser = make_parser(choose("", (), tools="hermes"), TOOLS)
    assert parser.feed("Is 1 <", False) == [TextDelta("Is 1")]
    assert parser.feed(" 2? ", False) == [TextDelta(" < 2?")]
    assert parser.feed("<tool_cell>", False) == [TextDelta(" <tool_cell>")]
    assert parser.feed(" ", True) == [TextDelta(" ")]


def test_a_parser_says_whether_the_text_is_reasoning() -> None:
    """The state behind each piece is known, from the prompt on."""
    formats = choose("", (), tools="hermes", reasoning="qwen3")
    parser = make_parser(formats, TOOLS, prompt_end="<|im_start|>assistant\n<think>\n")
    assert parser.is_reasoning
    parser.feed("Well", False)
    assert parser.is_reasoning
    parser.feed("</think>", False)
    assert not parser.is_reasoning
    assert not make_parser(formats, TOOLS).is_reasoning


def test_without_tools_calls_are_text() -> None:
    """A parser for a request without tools looks for reasoning only."""
    formats = choose("", (), tools="hermes", reasoning="qwen3")
    text = '<think>Hm</think><tool_call>{"name": "now"}</tool_call>'
    found = message_of(make_parser(formats).feed(text, True))
    assert (found.reasoning, found.calls) == ("Hm", [])
    assert found.text == '<tool_call>{"name": "now"}</tool_call>'
    assert isinstance(make_parser(choose("", (), tools="hermes")), PlainText)
