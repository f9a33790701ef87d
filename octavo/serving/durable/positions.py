"""Positions in a stream: the ids of its events, and what a client knows that names one.

A position counts the tokens of an answer, and its end as one more. The id of an event is the
position behind it, for a request with several answers that of each, with commas. What a stream
contains up to a position depends on nothing but the tokens. So a client that names the last id it
has received gets exactly what it lacks, whatever happened meanwhile.

One token may need several events, as when a tool call follows text. Those before its last have the
position before the token, and how many of its events the client has with them: `9-1`. The events of
a token depend on nothing but the tokens either.
"""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import parse_qs

from octavo.serving.exchange import Exchange
from octavo.transport.errors import invalid

FROM = "from"
LAST_EVENT_ID = "last-event-id"
_LENGTH = 20  # of one position
_ONE = r"[0-9]{1,10}(?:-[0-9]{1,4})?"
_POSITIONS = re.compile(rf"{_ONE}(?:,{_ONE})*")


class Position(NamedTuple):
    """A place in one answer's stream; they are ordered as the stream is."""

    tokens: int = 0  # and the end as one more
    events: int = 0  # of the next token, or of the end

    def __str__(self) -> str:
        return f"{self.tokens}-{self.events}" if self.events else str(self.tokens)


START = Position()


def check_query(exchange: Exchange) -> None:
    """Raise ApiError for a parameter that is not known: the stream would begin anew without it."""
    for name in _query(exchange):
        if name != FROM:
            raise invalid(
                f"there is no parameter {name[:64]!r}; the stream continues behind {FROM}=N",
                name[:64],
                "unknown_parameter",
            )


def known_to(exchange: Exchange, num_answers: int) -> list[Position]:
    """Return the position that a request names for each answer; raise ApiError for another form.

    The header is newer than the address, with which a browser connects again each time.
    """
    given = exchange.headers.get(LAST_EVENT_ID) or _query(exchange).get(FROM, ["0"])[-1]
    is_short = len(given) <= num_answers * (_LENGTH + 1)
    if not (is_short and _POSITIONS.fullmatch(given)):
        raise invalid(
            f"{given[:64]!r} is no position; name the id of the last event that was received, "
            "or 0 for all of the stream",
            FROM,
        )
    positions = [Position(*map(int, each.split("-"))) for each in given.split(",")]
    if positions == [START]:
        return positions * num_answers
    if len(positions) != num_answers:
        raise invalid(
            f"{given[:64]!r} has {len(positions)} positions; this request has {num_answers} "
            "answers, and needs one for each",
            FROM,
        )
    return positions


def _query(exchange: Exchange) -> dict[str, list[str]]:
    text = exchange.head.query
    return parse_qs(text, keep_blank_values=True)
