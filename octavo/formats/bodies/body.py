"""The protocol of bodies, and what a body needs to read, write and constrain one call."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from octavo.formats.lark import Lark
from octavo.formats.protocol import Call, Tool
from octavo.formats.reader import MismatchError, Reader, Steps
from octavo.formats.sink import Sink


@dataclass(frozen=True, slots=True)
class Context:
    """The knowledge with which one call is read."""

    tools: Mapping[str, Tool] = field(default_factory=dict)
    needs_known: bool = False  # without a mark before it, only a known name makes a call
    stop: str = ""  # ends the call although its arguments are still open

    def check(self, name: str) -> None:
        """Raise MismatchError if this cannot be the name of a function here."""
        if not name or (self.needs_known and name not in self.tools):
            raise MismatchError

    def schema(self, name: str) -> Mapping[str, Any]:
        """Return the schema of a function's arguments."""
        tool = self.tools.get(name)
        return (tool and tool.parameters) or {}


class Body(Protocol):
    """One way to write a call, without the marks around it."""

    @property
    def marks(self) -> Collection[str]:
        """The strings in it that may be special tokens."""

    @property
    def first(self) -> str:
        """The character with which another call may follow without a mark; "" if none may."""

    def read(self, reader: Reader, sink: Sink, context: Context) -> Steps[None]:
        """Read a call; raise MismatchError if there is none, before the sink got any of it."""

    def write(self, call: Call, index: int) -> str:
        """Return the call as a model writes it; `index` is its place among all calls."""

    def rule(self, tool: Tool, lark: Lark) -> str:
        """Return the right side of a rule that allows the calls of this tool."""

    def unenforced(self, tool: Tool) -> list[str]:
        """Return the paths of those keywords of the tool's schema that its rule ignores."""
