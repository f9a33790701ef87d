"""The errors that clients receive: one exception, documented codes; a dialect gives them a form.

Only messages of this package reach a client. Any other exception becomes a 500 that contains no
more than the id of the request, which is in the log too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Self

# The neutral names of what a prompt is made from. Where it came from is one field of a dialect.
OF_PROMPTS = ("prompt", "template", "messages")


class ApiError(Exception):
    """An error response; `param` names the field that caused it."""

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
        # Of a prompt that is too long: its tokens, and those of the context.
        self.room: tuple[int, int] | None = None

    @property
    def named_message(self) -> str:
        """The message, which begins with the field at fault if it does not name it."""
        is_named = self.param is None or self.param in self.message
        return self.message if is_named else f"{self.param}: {self.message}"

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Return this error with a dialect's name of its field, which stands in the message too.

        `names` are those of fields, or of the beginnings of their paths; the longest one counts.
        """
        param = self.param or ""
        found = [name for name in names if re.match(rf"{re.escape(name)}(?!\w)", param)]
        if self.status == 400 and found:
            name = max(found, key=len)
            if name in OF_PROMPTS:  # these are words of the message's language
                self.param = names[name]
                return self
            self.param = own = names[name] + param[len(name) :]
            self.message = re.sub(rf"\b{re.escape(param)}(?!\w)", lambda _: own, self.message)
        return self

    def at(self, place: str) -> Self:
        """Return this error with the place of its input among others, which the message names."""
        subject = rf"^(the )?{re.escape(self.param or 'prompt')}(?!\w)"
        message, is_named = re.subn(subject, lambda _: place, self.message)
        self.message = message if is_named else f"{place}: {message}"
        self.param = place
        return self


class ClientGoneError(Exception):
    """The client has disconnected, or was disconnected because it reads too slowly."""


def invalid(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """Return the error for an invalid request."""
    return ApiError(400, message, param=param, code=code)


def not_yet(param: str, what: str) -> ApiError:
    """Return the error for a feature that other servers have, and this one does not."""
    return ApiError(400, f"{param}: {what}", param=param, code="unsupported_parameter")


def too_many(message: str, retry_after_seconds: int, code: str) -> ApiError:
    """Return the error for a request that may be sent again later."""
    after = (b"retry-after", str(retry_after_seconds).encode())
    return ApiError(429, message, code=code, headers=(after,))


def unavailable(message: str, code: str, retry_after_seconds: int = 5) -> ApiError:
    """Return the error for a server that serves no request now."""
    after = (b"retry-after", str(retry_after_seconds).encode())
    return ApiError(503, message, code=code, headers=(after,))


def internal(request_id: str) -> ApiError:
    """Return the error for a failure of the server, whose reason is only in the log."""
    return ApiError(
        500,
        f"the server failed on this request; its log has more under {request_id}",
        code="internal",
    )
