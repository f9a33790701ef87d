"""The requests to /invocations that begin and end SageMaker's stateful sessions."""

from __future__ import annotations

import time
from typing import Literal

from msgspec import Struct, field

from octavo.serving.bounds.sessions import HEADER, SECONDS
from octavo.serving.exchange import Exchange
from octavo.serving.schema.decode import decode
from octavo.transport.errors import ApiError

_NEW, _CLOSED = b"x-amzn-sagemaker-new-session-id", b"x-amzn-sagemaker-closed-session-id"
_CREATES = "NEW_SESSION"


class SessionRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request to begin or to end a session."""

    kind: Literal["NEW_SESSION", "CLOSE"] = field(name="requestType")


async def change_session(exchange: Exchange, body: bytes) -> None:
    """Handle a request to begin or to end a session."""
    request = exchange.accept(SessionRequest, *decode(body, SessionRequest))
    sessions, name = exchange.server.sessions, exchange.headers.get(HEADER, "")
    if request.kind == _CREATES:
        made = sessions.create(exchange.owner)
        end = time.gmtime(exchange.server.wall_time() + SECONDS)
        expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", end)
        exchange.extra_headers.append((_NEW, f"{made}; Expires={expires}".encode()))
    elif not name:
        raise ApiError(
            424, f"invalid session_id: name the session in the header {HEADER}", param=HEADER
        )
    else:
        sessions.close(exchange.owner, name)
        exchange.extra_headers.append((_CLOSED, name.encode()))
    await exchange.respond_json({})


def check_session(exchange: Exchange) -> None:
    """Raise ApiError if the request names a session that is not open."""
    name = exchange.headers.get(HEADER)
    if name is not None and name != _CREATES:
        exchange.server.sessions.check(exchange.owner, name)
