"""Tests of parsers with text that is no call, or broken in any way."""

from __future__ import annotations

import random
import re

import pytest

from octavo.formats.deltas import Delta
from octavo.formats.parser import make_parser
from octavo.formats.protocol import Call
from octavo.formats.registry import choose, reasoning_names, tool_names
from octavo.formats.rendering import write_calls
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
