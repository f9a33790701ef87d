"""What a client is told when something cannot be done: one exception, one shape, exact codes.

Only what is written in this package reaches a client. A foreign exception becomes a 500 that says
no more than where to look: the request's id.
"""

from __future__ import annotations

from typing import Any

INVALID = "invalid_request_error"
FORBIDDEN = "permission_error"
BAD_KEY = "authentication_error"
TOO_MANY = "rate_limit_error"
UNAVAILABLE = "service_unavailable_error"
INTERNAL = "server_error"

_TYPES = {
    400: INVALID,
    401: BAD_KEY,
    403: FORBIDDEN,
    404: "not_found_error",
    405: INVALID,
    408: INVALID,
    413: INVALID,
    415: INVALID,
    429: TOO_MANY,
    503: UNAVAILABLE,
}


class ApiError(Exception):
    """An answer that is an error; `param` names the field it is about."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        headers: tuple[tuple[bytes, bytes], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.headers = headers

    def body(self) -> dict[str, Any]:
        """The error as OpenAI's clients read it."""
        return {
            "error": {
                "message": self.message,
                "type": _TYPES.get(self.status, INTERNAL),
                "param": self.param,
                "code": self.code,
            }
        }


class ClientGoneError(Exception):
    """The client has closed the connection, or reads so slowly that it was closed for it."""


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that is wrong as it is."""
    return ApiError(400, message, param=param, code=code)


def not_yet(param: str, what: str) -> ApiError:
    """A field that other servers know, asked for in earnest."""
    return ApiError(400, f"{param}: {what}", param=param, code="unsupported_parameter")


def too_many(message: str, retry_after_seconds: int, code: str) -> ApiError:
    """Turned away for now."""
    after = (b"retry-after", str(retry_after_seconds).encode())
    return ApiError(429, message, code=code, headers=(after,))


def unavailable(message: str, code: str, retry_after_seconds: int = 5) -> ApiError:
    """Nobody is served just now."""
    after = (b"retry-after", str(retry_after_seconds).encode())
    return ApiError(503, message, code=code, headers=(after,))


def internal(request_id: str) -> ApiError:
    """Something broke here; the log knows what."""
    return ApiError(
        500,
        f"the server failed on this request; its log has more under {request_id}",
        code="internal",
    )
