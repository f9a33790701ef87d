"""Arguments of a request for the logits processors that the engine was started with.

They are a flat mapping, kept as JSON text: it can be compared, hashed and sent as it is, and each
processor reads a copy of its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from octavo.core.parameters.errors import RequestError

MAX_EXTRA_ARGS = 16
MAX_EXTRA_ARG_NAME = 64  # characters
MAX_EXTRA_ARGS_TEXT = 4096  # characters of JSON, all of it ASCII
NAME = "extra_args"


def read_extra_args(given: object) -> str:
    """Return a mapping, or its JSON text, as JSON text within bounds; "" if it is empty or None."""
    if isinstance(given, str):
        _check_size(given)
        try:
            given = json.loads(given)
        except (ValueError, RecursionError):
            raise _wrong("is not JSON; give a mapping") from None
    if given is None:
        return ""
    if not isinstance(given, Mapping):
        raise _wrong(f"is a {type(given).__name__}; it must be a mapping of names to values")
    if len(given) > MAX_EXTRA_ARGS:
        raise _wrong(f"has {len(given)} names; at most {MAX_EXTRA_ARGS} are allowed")
    for name, value in given.items():
        _check(name, value)
    if not given:
        return ""
    text = json.dumps(dict(given), separators=(",", ":"))
    _check_size(text)
    return text


def arguments_of(text: str) -> dict[str, Any]:
    """Return the mapping of a text that `read_extra_args` has made; it is new each time."""
    return json.loads(text) if text else {}


def _check(name: object, value: object) -> None:
    """Refuse a name or a value that is out of bounds."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_EXTRA_ARG_NAME:
        raise _wrong(
            f"has the name {str(name)[:MAX_EXTRA_ARG_NAME]!r}; names are strings of 1 to "
            f"{MAX_EXTRA_ARG_NAME} characters"
        )
    for each in value if isinstance(value, list | tuple) else (value,):
        if not isinstance(each, str | int | float) or each in (math.inf, -math.inf) or each != each:
            raise _wrong(
                f"has {name!r}: {str(value)[:64]}; a value is a string, a finite number, true or "
                "false, or a list of these"
            )


def _check_size(text: str) -> None:
    if len(text) > MAX_EXTRA_ARGS_TEXT:
        raise _wrong(
            f"has {len(text)} characters as JSON; at most {MAX_EXTRA_ARGS_TEXT} are allowed"
        )


def _wrong(what: str) -> RequestError:
    return RequestError(f"{NAME} {what}", param=NAME)
