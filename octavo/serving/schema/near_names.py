"""Errors for names that are not known, with the name that was probably meant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from octavo.nearest import nearest
from octavo.transport.errors import ApiError, invalid

_MOST_CHARACTERS = 64
_LEAST_PART = 3  # characters of a name that are the beginning of another


def near_name(name: str, known: Iterable[Any]) -> str:
    """Return a hint with the nearest of the known names, or nothing if none is near.

    A name is near too if it begins another one, or begins with another one.
    """
    names = [each for each in known if isinstance(each, str)]
    given = name[:_MOST_CHARACTERS]
    near = nearest(given, names)
    near = near or [each for each in names if _begins(given.lower(), each.lower())]
    return f"; did you mean {near[0]!r}?" if near else ""


def not_among(where: str, known: Sequence[Any], given: Any, others: str = "") -> ApiError:
    """Return the error for a value that is none of the known ones; `others` are possible too."""
    listed = ", ".join(map(repr, known))
    expected = f"one of {listed}" if len(known) > 1 else listed
    hint = near_name(given, known) if isinstance(given, str) else ""
    if isinstance(given, str) and len(given) > _MOST_CHARACTERS:
        given = given[:_MOST_CHARACTERS] + "…"
    return invalid(f"{where}: expected {expected}{others}, got {given!r}{hint}", where)


def _begins(one: str, other: str) -> bool:
    shorter = min(len(one), len(other))
    return shorter >= _LEAST_PART and one[:shorter] == other[:shorter]
