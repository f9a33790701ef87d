"""A text that an answer may follow: drafts are taken from it, and no answer depends on it."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from octavo.core.parameters.errors import RequestError

MAX_PREDICTION_CHARACTERS = 1 << 22
MAX_PREDICTION_TOKENS = 1 << 20  # those of a text are limited by the model's context
NAME = "prediction"


def read_prediction(given: object) -> str | tuple[int, ...]:
    """Return a text, or token ids as a tuple; "" if there is nothing to follow."""
    if given is None:
        return ""
    if isinstance(given, str):
        if len(given) > MAX_PREDICTION_CHARACTERS:
            raise RequestError(
                f"{NAME} has {len(given)} characters; at most {MAX_PREDICTION_CHARACTERS} are "
                "accepted: send the part that the answer is likely to repeat",
                param=NAME,
            )
        return given
    if not isinstance(given, Iterable) or isinstance(given, bytes | dict):
        raise _wrong(f"is a {type(given).__name__}; it must be a text, or a list of token ids")
    tokens: list[int] = []
    for token in given:
        tokens.append(_token(token))
        if len(tokens) > MAX_PREDICTION_TOKENS:
            raise _wrong(f"has more than {MAX_PREDICTION_TOKENS} token ids")
    return tuple(tokens) or ""


def _token(token: Any) -> int:
    try:
        number = -1 if isinstance(token, bool) else operator.index(token)
    except TypeError:
        number = -1
    if not 0 <= number < 2**31:
        raise _wrong(f"contains {str(token)[:64]!r}, which is no token id")
    return number


def _wrong(what: str) -> RequestError:
    return RequestError(f"{NAME} {what}", param=NAME)
