"""Transcripts: what a model wrote, and the message that it stands for."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, convert

from octavo.formats.deltas import Delta, ReasoningDelta, TextDelta, ToolCallDelta
from octavo.formats.description import Formats
from octavo.formats.parser import make_parser
from octavo.formats.protocol import Tool
from octavo.formats.registry import reasoning_format, tool_format

FOLDER = Path(__file__).parent / "transcripts"


class ExpectedCall(Struct, forbid_unknown_fields=True):
    """A call of the message."""

    name: str
    arguments: str
    id: str | None = None


class Message(Struct, forbid_unknown_fields=True):
    """The message that a transcript stands for."""

    text: str = ""
    reasoning: str = ""
    calls: list[ExpectedCall] = []


class Transcript(Struct, forbid_unknown_fields=True):
    """The end of a prompt, the text of its answer, and the message in it."""

    name: str
    raw: str
    expected: Message
    tools: str | None = None  # names of formats
    reasoning: str | None = None
    prompt_end: str = ""
    parallel: bool = True

    def message(self, pieces: Iterable[str]) -> Message:
        """Return the message that a parser finds in these pieces of an answer."""
        parser = make_parser(
            self.formats, TOOLS, prompt_end=self.prompt_end, parallel=self.parallel
        )
        deltas: list[Delta] = []
        for piece in pieces:
            deltas += parser.feed(piece, False)
        return message_of([*deltas, *parser.feed("", True)])

    @property
    def formats(self) -> Formats:
        """The formats of the model that wrote it."""
        return Formats(
            None if self.tools is None else tool_format(self.tools),
            None if self.reasoning is None else reasoning_format(self.reasoning),
        )


def message_of(deltas: Sequence[Delta]) -> Message:
    """Return the message that the deltas add up to; check the order of each call's deltas."""
    message = Message(calls=[])
    for delta in deltas:
        if isinstance(delta, TextDelta):
            message.text += delta.text
        elif isinstance(delta, ReasoningDelta):
            message.reasoning += delta.text
        elif isinstance(delta, ToolCallDelta):
            if delta.name is not None:
                message.calls.append(ExpectedCall(delta.name, "", delta.call_id))
            assert delta.index == len(message.calls) - 1, "deltas of a call come in one run"
            message.calls[-1].arguments += delta.arguments
    return message


def transcripts() -> list[Transcript]:
    """Return all transcripts of the folder."""
    found: list[Transcript] = []
    for path in sorted(FOLDER.glob("*.toml")):
        content: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
        common = content.get("common", {})
        found += [convert({**common, **case}, Transcript) for case in content["case"]]
    return found


# The tools of all transcripts.
TOOLS = (
    Tool(
        "get_weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "days": {"type": "integer"},
                "metric": {"type": "boolean"},
                "at": {"type": "object", "properties": {"lat": {"type": "number"}}},
                "tags": {"type": "array", "items": {"type": "string"}},
                "note": {"type": ["string", "null"]},
            },
            "required": ["city"],
        },
    ),
    Tool("get_time", {"type": "object", "properties": {"zone": {"type": "string"}}}),
    Tool("now"),
)
