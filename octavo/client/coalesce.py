"""Events of several steps that have come at once: of each request one, where nothing is lost."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.request import FAILURES, TokenEvent


def coalesce(events: Sequence[TokenEvent]) -> list[TokenEvent]:
    """The same news in fewer events, each request's in their order.

    So a front end that has fallen behind makes one text, one chunk and one write of what waits.
    """
    told: list[TokenEvent] = []
    places: dict[str, int] = {}  # of each request's last event
    for event in events:
        place = places.get(event.request_id)
        if place is not None and _can_be_joined(event) and _is_plain(before := told[place]):
            tokens = before.tokens + event.tokens
            told[place] = event._replace(position=before.position, tokens=tokens)
            continue
        places[event.request_id] = len(told)
        told.append(event)
    return told


def _can_be_joined(event: TokenEvent) -> bool:
    """Whether tokens before it may come with it: who reads of a failure reads no tokens there."""
    return event.payload is None and event.finish_reason not in FAILURES


def _is_plain(event: TokenEvent) -> bool:
    """Whether it tells of tokens alone."""
    return event.finish_reason is None and event.payload is None and event.stats is None
