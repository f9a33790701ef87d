"""/v1/requests/{id}/explain: where the time of a recent request went."""

from __future__ import annotations

from octavo.server.call import Call
from octavo.server.errors import ApiError


async def explain(call: Call) -> None:
    """Of one's own requests alone: another key's are not there."""
    server = call.server
    if not server.config.enable_explain:
        raise ApiError(404, "explanations are switched off here", code="explain_disabled")
    record = server.recent.find(call.parameter, call.owner)
    if record is None:
        raise ApiError(
            404,
            f"no request {call.parameter[:128]!r} is remembered; the last "
            f"{server.config.num_explained} are",
            code="request_not_found",
        )
    await call.respond_json(record.explain(server.clock()))
