"""The parameters of an address, their numbers, and the pages of a list that they ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import parse_qs

from octavo.serving.exchange import Exchange
from octavo.transport.errors import invalid

_MOST_DIGITS = 15  # enough for every bound, and few enough for every arithmetic
MAX_PARAMETERS = 16
_SHOWN = 64  # characters of what is wrong
T = TypeVar("T")


def query_of(exchange: Exchange, known: Sequence[str] | None = None) -> dict[str, str]:
    """Return the last value of each parameter; raise ApiError for one that is not `known`."""
    text = exchange.head.query
    try:
        given = parse_qs(text, keep_blank_values=True, max_num_fields=MAX_PARAMETERS)
    except ValueError:
        raise invalid(f"the address has more than {MAX_PARAMETERS} parameters") from None
    for name in given:
        if known is not None and name not in known:
            listed = f"; there are: {', '.join(known)}" if known else ""
            short = name[:_SHOWN]
            raise invalid(f"there is no parameter {short!r}{listed}", short, "unknown_parameter")
    return {name: values[-1] for name, values in given.items()}


def page_of(
    rows: Sequence[T], name: Callable[[T], str], query: Mapping[str, str], usual: int, most: int
) -> tuple[list[T], dict[str, Any]]:
    """Return the page of a list, the oldest first, that `limit`, `order` and `after` ask for.

    With it are the fields of its response that say where it is.
    """
    given = query.get("limit", str(usual))
    limit = bounded_number(given, 1, most)
    if limit is None:
        raise invalid(f"limit: expected 1 to {most}, got {given[:_SHOWN]!r}", "limit")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid(f"order: expected 'asc' or 'desc', got {order[:_SHOWN]!r}", "order")
    left = list(rows) if order == "asc" else list(reversed(rows))
    after = query.get("after")
    if after is not None:
        place = next((index for index, row in enumerate(left) if name(row) == after), None)
        if place is None:
            raise invalid(f"after: {after[:_SHOWN]!r} is not in this list", "after")
        left = left[place + 1 :]
    shown = left[:limit]
    first, last = (name(shown[0]), name(shown[-1])) if shown else (None, None)
    return shown, {"first_id": first, "last_id": last, "has_more": len(left) > limit}


def bounded_number(text: str, least: int, most: int) -> int | None:
    """Return the number that a text writes in decimal digits; None if it is none in the bounds."""
    if not (text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS):
        return None
    number = int(text)
    return number if least <= number <= most else None
