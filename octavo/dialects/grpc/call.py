"""One gRPC call as the application's protocol (ASGI) describes it, and its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, MutableMapping
from typing import Any

import msgspec

from octavo.dialects.grpc.dialect import SECONDS_LEFT, error_fields, frames_in
from octavo.transport.errors import ApiError, ClientGoneError, unavailable

# The status of an error, by that of HTTP.
_CODES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    405: "UNIMPLEMENTED",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    413: "RESOURCE_EXHAUSTED",
    415: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    431: "RESOURCE_EXHAUSTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_HIDDEN = (b"content-type", b"content-length", b"connection", b"cache-control")
MAX_METADATA_BYTES = 1000  # of one value that is sent


class Call:
    """The scope of one call, what it receives and what it sends."""

    def __init__(self, context: Any, path: str, *, is_stream: bool) -> None:
        self.context = context  # of grpcio
        self.path = path
        self._body: bytes | None = None
        self._is_stream = is_stream
        self._gone = asyncio.Event()
        self.held = contextlib.ExitStack()  # until the client has the end of the call
        self.reply = b""  # of a call that is not streamed
        self.error: dict[str, Any] | None = None
        # A web page can send no call, so that its host is no one's that was bound anew.
        self._headers = [(b"host", b"localhost")]
        metadata = context.invocation_metadata() or ()
        self.num_values = len(metadata)
        for name, value in metadata:
            if isinstance(value, str) and name.lower() not in ("host", "content-length"):
                self._headers.append((name.lower().encode(), value.encode("latin-1", "replace")))
        self.scope: MutableMapping[str, Any] = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": self._headers,
            "extensions": {"octavo.cut": {"call": self._cut}},
            SECONDS_LEFT: context.time_remaining(),
        }

    def take(self, message: bytes) -> None:
        """Take the message, which the application receives as a body."""
        self._body = message
        self._headers.append((b"content-length", b"%d" % len(message)))

    def refuse(self, error: ApiError) -> None:
        """End the call with this error."""
        self.error = error_fields(error)

    async def receive(self) -> MutableMapping[str, Any]:
        """Return the message; afterwards wait for the end of the call."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send what the application responds."""
        if message["type"] == "http.response.start":
            metadata = [
                (name.decode(), _printable(value.decode("latin-1")))
                for name, value in message["headers"]
                if name not in _HIDDEN
            ]
            await self._sent(self.context.send_initial_metadata(tuple(metadata)))
            return
        for is_error, data in frames_in(message.get("body", b"")):
            if is_error:
                self.error = msgspec.json.decode(data)
            elif self._is_stream:
                await self._sent(self.context.write(data))
            else:
                self.reply = data

    async def _sent(self, sending: Awaitable[None]) -> None:
        """Wait until grpcio has sent something; raise ClientGoneError if its client has left."""
        import grpc.aio

        try:
            await sending
        except grpc.aio.InternalError:
            raise ClientGoneError from None

    async def end(self) -> None:
        """Raise the call's error to its client, if it has one."""
        self._gone.set()
        error = self.error
        if error is None:
            return
        import grpc

        code = grpc.StatusCode[_CODES.get(error["status"], "INTERNAL")]
        trailing = dict(error["headers"])
        for name in ("code", "param"):
            if error[name] is not None:
                trailing[f"octavo-{name}"] = error[name]
        metadata = tuple((name, _printable(value)) for name, value in trailing.items())
        await self.context.abort(code, error["message"], metadata)

    def _cut(self) -> None:
        self.refuse(unavailable("the server has ended this call", "server_shutdown"))


def _printable(text: str) -> str:
    """Return text as a value of metadata, which has printable ASCII alone."""
    return "".join(each if " " <= each <= "~" else "?" for each in text[:MAX_METADATA_BYTES])
