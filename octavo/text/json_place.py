"""The field of a JSON text at a line and column, for the messages of readers that know no more."""

from __future__ import annotations

import re

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},:]')
_LONGEST_KEY = 60


def field_at(text: bytes, line: int, column: int) -> str:
    """Return the path of the last value that begins before a place, as in `model.merges[3]`.

    Lines and columns count from one, and columns are bytes.
    """
    lines = text.split(b"\n", line)
    end = sum(len(each) + 1 for each in lines[: line - 1]) + column
    path: list[str | int] = []
    key = b""
    for match in _TOKEN.finditer(text, 0, min(end, len(text))):
        token = match[0]
        if token == b"{":
            path.append("")
        elif token == b"[":
            path.append(0)
        elif token in b"]}":
            del path[-1:]
        elif token == b"," and path and isinstance(path[-1], int):
            path[-1] += 1
        elif token == b":" and path and isinstance(path[-1], str):
            path[-1] = key.decode(errors="replace")[:_LONGEST_KEY]
        key = token.strip(b'"')
    words = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return "".join(words).lstrip(".").rstrip(".")
