"""What every route that generates does first: refuse if nobody is served, and take a place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from octavo.server.admission import Ticket
from octavo.server.call import Call


@asynccontextmanager
async def admitted(call: Call) -> AsyncIterator[Ticket]:
    """A place at the door, before the body is read; given back whatever happens."""
    server = call.server
    refusal = server.refusal()
    if refusal is not None:
        server.metrics.rejected.add(1, refusal.code or "unavailable")
        raise refusal
    length = call.headers.get("content-length", "")
    num_bytes = int(length[:20]) if length.isdigit() else server.config.max_body_bytes
    ticket = server.admission.knock(call.owner, min(num_bytes, server.config.max_body_bytes))
    try:
        yield ticket
    finally:
        ticket.leave()
