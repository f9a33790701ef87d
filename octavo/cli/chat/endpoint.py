"""Where a conversation's requests go: the protocol, and the reader of streamed answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol

from octavo.core.sampling_params import RequestError
from octavo.loader_process.messages import printable

MAX_EVENT_BYTES = 4 << 20
MAX_ANSWER_BYTES = 64 << 20
MAX_ERROR_BYTES = 64 << 10
_SHOWN_CHARACTERS = 2000  # of a server's message

Body = dict[str, Any]
Take = Callable[[Body], None]


class EndpointError(OSError):
    """The other side cannot be reached, or does not answer as it should."""


class Endpoint(Protocol):
    """A model behind OpenAI's chat completions: an engine of this process, or a server."""

    def chat(self, body: Body, take: Take) -> None:
        """Send a request, and pass each chunk of the answer to `take`.

        Raise RequestError for a request that is refused and EndpointError for other failures.
        KeyboardInterrupt ends the request.
        """

    def close(self) -> None:
        """Release what the endpoint holds."""


class Events:
    """The events of one stream, put together from its bytes, however these are split."""

    def __init__(self, take: Take) -> None:
        self._take = take
        self._rest = b""
        self._num_bytes = 0
        self.is_done = False

    def feed(self, part: bytes) -> None:
        """Pass on the events that end in this part; raise the error that the stream reports."""
        self._num_bytes += len(part)
        if self._num_bytes > MAX_ANSWER_BYTES:
            raise EndpointError(f"the answer has more than {MAX_ANSWER_BYTES:,} bytes")
        *lines, self._rest = (self._rest + part).split(b"\n")
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EndpointError(f"a line of the answer has more than {MAX_EVENT_BYTES:,} bytes")
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"data" and not self.is_done:
                self._event(value.strip())

    def _event(self, value: bytes) -> None:
        if value == b"[DONE]":
            self.is_done = True
            return
        try:
            chunk = json.loads(value)
        except (ValueError, RecursionError):
            chunk = None
        if not isinstance(chunk, dict):
            raise EndpointError(f"the stream has what is no JSON object: {value[:80]!r}")
        if chunk.get("error"):
            raise RequestError(message_of(chunk) or "the server reports an error without a message")
        self._take(chunk)

    def finish(self) -> None:
        """Raise EndpointError if the stream has ended before its end."""
        if not self.is_done:
            raise EndpointError("the answer has broken off before its end; /retry asks again")


def error_of(status: int, body: bytes) -> Exception:
    """Return the error that a response with this status reports."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not message_of(found):
        return EndpointError(f"the server answers with status {status}, and no message")
    message = message_of(found)
    if status in (400, 404, 413, 422):
        return RequestError(message)
    return EndpointError(f"the server answers with status {status}: {message}")


def message_of(body: Body) -> str:
    """Return the message of an error's body, in the form of OpenAI or of others."""
    error = body.get("error", body)
    message = error.get("message", error.get("detail")) if isinstance(error, dict) else error
    return shown(str(message or ""))


def shown(text: str) -> str:
    """Return a server's text as one line that a terminal shows, and does not obey."""
    return printable(" ".join(text[:_SHOWN_CHARACTERS].split()))
