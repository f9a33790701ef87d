"""Calls that are a function's name, marks, and its arguments as a JSON object."""

from __future__ import annotations

import json
import re
from collections.abc import Collection

from msgspec import Struct

from octavo.formats.bodies.body import Context
from octavo.formats.bodies.json_text import copy_arguments
from octavo.formats.lark import Lark
from octavo.formats.protocol import Call, Tool
from octavo.formats.reader import Marks, MismatchError, Reader, Steps
from octavo.formats.sink import Sink

# Names of functions consist of letters, digits and a few signs; this one may come in an id.
NAME_END = re.compile(r"[^\w.\-/:]")


class NamedBody(Struct, tag_field="kind", tag="named", frozen=True, forbid_unknown_fields=True):
    """A name and arguments, such as f[ARGS]{"x": 1}."""

    between: tuple[str, ...] = ()  # marks between the name and the arguments
    optional_between: bool = False  # whether models leave them out
    skips: bool = False  # whether other words may stand before the last of them
    prefix: str = ""  # before the name
    has_number: bool = False  # after the name ":" and the number of the call, all of it its id
    id_mark: str = ""  # after the name this mark and the call's id, which models may leave out

    def unenforced(self, tool: Tool) -> list[str]:
        return []

    def __post_init__(self) -> None:
        if self.skips and not (self.between and self.between[-1].strip()):
            raise ValueError("`skips` needs a mark at the end of `between`")

    @property
    def marks(self) -> Collection[str]:
        return [piece.strip() for piece in (*self.between, self.id_mark) if piece.strip()]

    @property
    def first(self) -> str:
        return ""

    def read(self, reader: Reader, sink: Sink, context: Context) -> Steps[None]:
        yield from reader.space()
        name = yield from reader.word(NAME_END)
        call_id = None
        if self.has_number:
            call_id = name
            name = name.rpartition(":")[0] or name
        name = name.removeprefix(self.prefix)
        context.check(name)
        yield from reader.space()
        if self.id_mark and (yield from reader.skip(self.id_mark)):
            call_id = yield from reader.word(NAME_END)
            yield from reader.space()
        yield from self._marks_between(reader)
        yield from reader.space()
        if not (yield from reader.is_at("{")):
            raise MismatchError
        reader.release()
        sink.call(name, call_id)
        yield from copy_arguments(reader, sink.arguments, context.stop)

    def write(self, call: Call, index: int) -> str:
        arguments = json.dumps(json.loads(call.arguments), ensure_ascii=False)
        name = f"{self.prefix}{call.name}"
        if self.has_number:
            name = call.call_id or f"{name}:{index}"
        if self.id_mark and call.call_id is not None:
            name += self.id_mark + call.call_id
        return "".join((name, *self.between, arguments))

    def rule(self, tool: Tool, lark: Lark) -> str:
        head = f"{self.prefix}{tool.name}"
        parts = [lark.text(head)]
        if self.has_number:
            parts = [lark.text(head + ":"), "/[0-9]{1,3}/"]
        if self.id_mark:
            parts.append(f"({lark.text(self.id_mark)} /[a-zA-Z0-9]{{9}}/)?")
        parts += [lark.text("".join(self.between)), lark.arguments(tool)]
        return " ".join(part for part in parts if part)

    def _marks_between(self, reader: Reader) -> Steps[None]:
        """Read the marks between name and arguments, or nothing if they may be missing."""
        if self.skips:
            words: list[str] = []
            yield from reader.until(Marks(self.between[-1:]), words.append)
            return
        first = self.between[0].strip() if self.between else ""
        if self.optional_between and not (yield from reader.is_at(first)):
            return
        yield from reader.pieces(self.between)
