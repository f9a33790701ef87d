"""Merges events that arrive together into one per request, where that loses nothing."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.core.request import FAILURES, TokenEvent


def coalesce(events: Sequence[TokenEvent]) -> list[TokenEvent]:
    """Merge events of the same request, and keep each request's order.

    A front end that has fallen behind then makes one text, one chunk and one write of them.
    """
    merged: list[TokenEvent] = []
    last: dict[str, int] = {}  # request id → index of its last event
    for event in events:
        index = last.get(event.request_id)
        if index is not None and _can_append(event) and _has_only_tokens(before := merged[index]):
            tokens = before.tokens + event.tokens
            merged[index] = event._replace(position=before.position, tokens=tokens)
            continue
        last[event.request_id] = len(merged)
        merged.append(event)
    return merged


def _can_append(event: TokenEvent) -> bool:
    """Return whether earlier tokens may join the event; a failure's tokens are not read."""
    return event.payload is None and event.finish_reason not in FAILURES


def _has_only_tokens(event: TokenEvent) -> bool:
    return event.finish_reason is None and event.payload is None and event.stats is None
