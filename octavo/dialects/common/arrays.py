"""Parts of answers with an entry for each input: the entries, and errors at their inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from octavo.serving.bounds.turns import ByteTurns
from octavo.serving.operation import TURN
from octavo.transport.errors import ApiError
from octavo.transport.exchange import encode

Named = Callable[[ApiError, int], ApiError]


def errors_at(place: Callable[[int], str]) -> Named:
    """Return what names the field of an error by the place of its prompt."""
    return partial(_named, place)


def _named(place: Callable[[int], str], error: ApiError, index: int) -> ApiError:
    """Return an error of the checks with the name of its field in this dialect."""
    if error.status != 400 or error.param not in ("prompt", None):
        return error
    return error.at(place(index))


def at_conversation(error: ApiError, index: int) -> ApiError:
    """Return an error with the one of several conversations that it concerns."""
    name = error.param or ""
    if error.status != 400 or not name.startswith("messages"):
        return error
    return error.at(f"messages[{index}]{name.removeprefix('messages')}")


def encoded_each(values: Iterable[Any], least: int = 0) -> Iterator[bytes]:
    """Yield values as the items of a JSON array, with a `TURN` after each piece of long work.

    A value counts with its length in JSON, and with no fewer bytes than `least`.
    """
    turns, comma = ByteTurns(), b""
    for value in values:
        part = encode(value)
        yield comma + part
        comma = b","
        if turns.is_due(max(least, len(part))):
            yield TURN
