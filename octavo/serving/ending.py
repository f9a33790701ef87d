"""The end of requests by an operator's command: clients get the tokens so far."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from octavo.serving.server import ActiveRequest, Server
from octavo.transport.errors import ApiError

MAX_ABORTED = 4096  # ids in one request
_ENDED = "an operator ended this request"


class AbortRequests(Struct, kw_only=True, forbid_unknown_fields=True):
    """The body of /abort_requests."""

    request_ids: Annotated[
        list[Annotated[str, Meta(max_length=256)]], Meta(min_length=1, max_length=MAX_ABORTED)
    ]


async def end_all(server: Server) -> None:
    """End all requests; the lines of batches are tried again later."""
    for active in list(server.active.values()):
        await end(server, active, is_for_now=True)


async def end(server: Server, active: ActiveRequest, *, is_for_now: bool = False) -> None:
    """End a request, whose client gets the tokens so far.

    The line of a batch has an error as its result instead, unless it may be tried again later.
    """
    if active.is_background:
        active.stop(ApiError(503 if is_for_now else 409, _ENDED, code="aborted"))
        return
    if active.record.entered_at is None:  # the engine does not have it yet
        active.stop(ApiError(503, _ENDED, code="aborted"))
    for engine_id in active.engine_ids:
        await server.llm.abort(engine_id)
