"""The reading of a client's grammar in Lark's syntax: its schemas are checked, its options refused.

The options of a grammar (`%llguidance`) are the server's. Schemas within it (`%json`) pass the
same check as those of other requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from octavo.core.structured_outputs import ShapeError

# Parts to skip, so that a % in a text, a regex or a comment is no directive.
_PIECE = re.compile(
    r'"(?:[^"\\\n]|\\.)*"|/(?![/*])(?:[^/\\\n]|\\.)+/|//[^\n]*|\#[^\n]*|%(?P<directive>\w+)'
)
_OURS = {"json", "llguidance"}
_UNSAFE = {
    "import": "imports nothing here; write the rule itself",
    "declare": "declares what only a lexer of Lark's has",
    "override": "overrides nothing here",
    "extend": "extends nothing here",
}
_DECODER = json.JSONDecoder()


def checked(text: str, field: str, simplify: Callable[[Any, str], str]) -> str:
    """Return the grammar with its schemas simplified; raise ShapeError for what may not be in it.

    `simplify` returns a schema as JSON text, and is passed the path to it.
    """
    try:
        return _checked(text, field, simplify)
    except ShapeError as error:
        # A line is no part of a field's name.
        line, _, inner = error.path.removeprefix(" line ").partition(".")
        if not error.path.startswith(" line ") or error.field != field:
            raise
        place = f"line {line}, {inner}" if inner else f"line {line}"
        raise ShapeError(f"{place}: {error.what}", field) from None


def _checked(text: str, field: str, simplify: Callable[[Any, str], str]) -> str:
    parts: list[str] = []
    at = 0
    while found := _PIECE.search(text, at):
        directive = found["directive"]
        if directive not in _OURS:
            if directive in _UNSAFE:
                raise ShapeError(f"%{directive} {_UNSAFE[directive]}", field, _line(text, found))
            parts.append(text[at : found.end()])
            at = found.end()
            continue
        path = _line(text, found)
        if directive == "llguidance":
            what = "%llguidance sets options, which are the server's; remove the line"
            raise ShapeError(what, field, path)
        begin = found.end() + len(text[found.end() :]) - len(text[found.end() :].lstrip())
        try:
            schema, end = _DECODER.raw_decode(text, begin)
        except (ValueError, RecursionError) as error:
            raise ShapeError(f"%json is not followed by JSON: {error}", field, path) from None
        lines = "\n" * text.count("\n", begin, end)  # errors name lines of the client's text
        parts += text[at : found.start()], "%json ", simplify(schema, path), lines
        at = end
    return "".join([*parts, text[at:]])


def _line(text: str, found: re.Match[str]) -> str:
    """Return the path to a directive: its line."""
    return f" line {text.count(chr(10), 0, found.start()) + 1}"
