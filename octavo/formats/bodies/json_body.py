"""Calls that are JSON objects with the function's name and its arguments."""

from __future__ import annotations

import json
from collections.abc import Collection

from msgspec import Struct

from octavo.formats.bodies.body import Context
from octavo.formats.bodies.json_text import copy_arguments, copy_value, read_string
from octavo.formats.lark import Lark
from octavo.formats.protocol import Call, Tool
from octavo.formats.reader import MismatchError, Reader, Steps
from octavo.formats.sink import Sink


class JsonBody(Struct, tag_field="kind", tag="json", frozen=True, forbid_unknown_fields=True):
    """An object such as {"name": "f", "arguments": {"x": 1}}; other members are left out."""

    name: str = "name"
    arguments: tuple[str, ...] = ("arguments", "parameters")  # the first is the one to write
    number: str | None = None  # the member before it that holds the call's number as a string

    @property
    def marks(self) -> Collection[str]:
        return ()

    @property
    def first(self) -> str:
        return "{"

    def read(self, reader: Reader, sink: Sink, context: Context) -> Steps[None]:
        yield from reader.space()
        yield from reader.expect("{")
        name = None
        has_begun = False
        held: list[str] | None = None  # arguments that come before the name
        while not (yield from self._is_closed(reader)):
            key = yield from read_string(reader)
            yield from reader.pieces((":",))
            yield from reader.space()
            if key == self.name and name is None:
                name = yield from read_string(reader)
                context.check(name)
            elif key in self.arguments and name is not None and not has_begun:
                has_begun = True
                reader.release()
                sink.call(name)
                yield from copy_arguments(reader, sink.arguments, context.stop)
            elif key in self.arguments and held is None:
                held = []
                yield from copy_arguments(reader, held.append, context.stop)
            else:
                yield from copy_value(reader, lambda text: None, context.stop)
            yield from reader.space()
            yield from reader.skip(",")
        if name is None:
            raise MismatchError
        if not has_begun:
            reader.release()
            sink.call(name)
            sink.arguments("{}" if held is None else "".join(held))

    def write(self, call: Call, index: int) -> str:
        members = {} if self.number is None else {self.number: str(index)}
        arguments = json.loads(call.arguments)
        members |= {self.name: call.name, self.arguments[0]: arguments}
        return json.dumps(members, ensure_ascii=False)

    def rule(self, tool: Tool, lark: Lark) -> str:
        name = f"{json.dumps(self.name)}: {json.dumps(tool.name, ensure_ascii=False)}, "
        head = f"{name}{json.dumps(self.arguments[0])}: "
        parts = [lark.text("{" + head)]
        if self.number is not None:
            before = f'{{{json.dumps(self.number)}: "'
            parts = [lark.text(before), "/[0-9]{1,3}/", lark.text(f'", {head}')]
        return " ".join((*parts, lark.arguments(tool), lark.text("}")))

    def unenforced(self, tool: Tool) -> list[str]:
        return []

    def _is_closed(self, reader: Reader) -> Steps[bool]:
        yield from reader.space()
        return (yield from reader.skip("}"))
