"""Checks of single values: each returns the value in its right type, or raises RequestError."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, cast

from octavo.core.parameters.errors import RequestError

MAX_NAMED = 64  # wrong entries of a list that an error names


def require_int(name: str, value: Any, low: int, high: int) -> int:
    """Return `value` as an int. Integers of numpy are accepted, a bool is not."""
    try:
        number = operator.index(value)
    except TypeError:
        raise RequestError(f"{name}={value!r} must be a whole number") from None
    if isinstance(value, bool):
        raise RequestError(f"{name}={value!r} must be a whole number")
    if not low <= number <= high:
        raise RequestError(f"{name}={value} must be between {low} and {high}")
    return number


def require_number(name: str, value: Any, low: float, high: float) -> float:
    """Return `value` as a Python number. Numbers of numpy are accepted, a bool is not."""
    number = value
    if not isinstance(value, int | float):
        if not hasattr(type(value), "__float__"):
            raise RequestError(f"{name}={value!r} must be a number")
        try:
            number = float(value)
        except TypeError:
            raise RequestError(f"{name}={value!r} must be a number") from None
    if isinstance(value, bool):
        raise RequestError(f"{name}={value!r} must be a number")
    if not low <= number <= high:  # false for NaN too
        raise RequestError(f"{name}={value} must be a number between {low} and {high}")
    return cast("float", number)


def require_length(name: str, length: int, most: int) -> None:
    if length > most:
        raise RequestError(f"{name} has {length} entries; at most {most} are allowed")


def items(name: str, value: object) -> Iterable[Any]:
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise RequestError(f"{name}={value!r} must be a list")
    return value


def listed(wrong: Sequence[Any]) -> str:
    """Return the first of some wrong values for an error."""
    short = [each[:64] if isinstance(each, str) else each for each in wrong[:MAX_NAMED]]
    named = ", ".join(repr(each)[:70] for each in short)
    more = len(wrong) - MAX_NAMED
    return f"{named} and {more} more" if more > 0 else named
