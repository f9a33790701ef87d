"""Parts of grammars in llguidance's Lark syntax, for one vocabulary."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from octavo.formats.protocol import Tool

# White space that a grammar allows in arguments: as models write them, so that text is forced.
_SEPARATORS = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Lark:
    """A grammar in the making: its rules, and how a mark is written in it."""

    def __init__(self, tokens: Mapping[str, int]) -> None:
        """Write texts that are added tokens of the model, by their ids, as those tokens."""
        self._tokens = tokens
        self._rules: dict[str, str] = {}
        longest_first = sorted(tokens, key=lambda text: -len(text))
        self._added = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    def text(self, text: str) -> str:
        """Return the expression for a literal text; "" for an empty one."""
        parts, at = [], 0
        for found in self._added.finditer(text):
            parts += [quoted(text[at : found.start()]), f"<[{self._tokens[found.group()]}]>"]
            at = found.end()
        parts.append(quoted(text[at:]))
        return " ".join(part for part in parts if part)

    def until(self, end: str) -> str:
        """Return the expression for any text up to `end`, which is read with it."""
        if end in self._tokens:
            return f"{self.rule('any', ANY, is_terminal=True)} <[{self._tokens[end]}]>"
        name = f"until_{len(self._rules)}"
        self._rules[f"{name}[suffix={quoted(end)}]"] = ANY
        return name

    def arguments(self, tool: Tool) -> str:
        """Return the expression for a tool's arguments as JSON."""
        schema = dict(tool.parameters or {})
        schema.setdefault("type", "object")
        return self.json(schema)

    def json(self, schema: Mapping[str, Any]) -> str:
        """Return the expression for a JSON value with this schema."""
        return f"%json {json.dumps({**schema, 'x-guidance': _SEPARATORS})}"

    def rule(self, name: str, expression: str, *, is_terminal: bool = False) -> str:
        """Add a rule, unless it is there; return its name."""
        name = name.upper() if is_terminal else name
        self._rules.setdefault(name, expression)
        return name

    def finish(self, start: str) -> str:
        """Return the whole grammar."""
        rules = {"start": start, **self._rules}
        return "".join(f"{name}: {expression}\n" for name, expression in rules.items())


ANY = r"/(?s:.*)/"


def quoted(text: str) -> str:
    """Return a literal of the grammar; "" for an empty text."""
    return json.dumps(text, ensure_ascii=False) if text else ""
