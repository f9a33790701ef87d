"""What schemathesis cannot do by itself: judge streams of lines of JSON, and name the served model.

It runs in schemathesis' own environment, without Octavo's packages.
"""

from __future__ import annotations

import json
from typing import Any

import schemathesis

LINES = "application/x-ndjson"
MOST_CHARACTERS = 512  # of a name; a longer one is wrong by itself


@schemathesis.hook
def before_load_schema(context: Any, raw_schema: dict[str, Any]) -> None:
    """Let the schema of a line hold for each line of a stream, of which there is one at least."""
    for operations in raw_schema["paths"].values():
        for operation in operations.values():
            content = operation["responses"]["200"]["content"]
            if LINES in content:
                line = content[LINES]["schema"]
                content[LINES]["schema"] = {"type": "array", "minItems": 1, "items": line}


@schemathesis.deserializer(LINES)
def read_lines(context: Any, response: Any) -> list[Any]:
    """Return the values of a stream, each of which ends with a line break."""
    text = response.content.decode()
    assert text.endswith("\n"), "the last line has no end"
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


@schemathesis.hook
def map_body(context: Any, body: Any) -> Any:
    """Ask for the served model in most bodies with a name, since others are answered with a 404."""
    name = body.get("model") if isinstance(body, dict) else None
    if isinstance(name, str) and 0 < len(name) <= MOST_CHARACTERS and len(name) % 8:
        return {**body, "model": "tiny"}
    return body
