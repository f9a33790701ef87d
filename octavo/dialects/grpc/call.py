"""One gRPC call as an answer, and its end."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable
from typing import Any

import msgspec

from octavo.dialects.grpc.dialect import GRPC, error_fields, frames_in
from octavo.serving.exchange import Exchange
from octavo.serving.server import Server
from octavo.transport.answer import AwaitedAnswer, Headers, RequestHead
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


class Call(AwaitedAnswer):
    """One call: the metadata that its client has sent before the message, and its answer."""

    def __init__(self, context: Any, path: str, *, is_stream: bool) -> None:
        self.context = context  # of grpcio
        self._is_stream = is_stream
        self.held = contextlib.ExitStack()  # until the client has the end of the call
        self.reply = b""  # of a call that is not streamed
        self.error: dict[str, Any] | None = None
        # A web page can send no call, so that its host is no one's that was bound anew.
        headers = {"host": "localhost"}
        metadata = context.invocation_metadata() or ()
        self.num_values = len(metadata)
        for name, value in metadata:
            if isinstance(value, str) and name.lower() not in ("host", "content-length"):
                headers.setdefault(name.lower(), value)
        self.head = RequestHead("POST", path, headers, seconds_left=context.time_remaining())

    def exchange(self, server: Server, message: bytes) -> Exchange:
        """Return the exchange of a call with this message, as the application answers it."""
        self.head.headers["content-length"] = str(len(message))
        exchange = Exchange(server, self.head, self, GRPC)
        exchange.give(message)
        return exchange

    def refuse(self, error: ApiError) -> None:
        """End the call with this error."""
        self.error = error_fields(error)

    async def begin(self, status: int, headers: Headers) -> None:
        """Send the headers as metadata; the status is that of the call's end."""
        metadata = [
            (name.decode(), _printable(value.decode("latin-1")))
            for name, value in headers
            if name not in _HIDDEN
        ]
        await self._sent(self.context.send_initial_metadata(tuple(metadata)))

    async def write(self, part: bytes, *, more: bool) -> None:
        """Send the messages of a part, or keep them for the end of the call."""
        for is_error, data in frames_in(part):
            if is_error:
                self.error = msgspec.json.decode(data)
            elif self._is_stream:
                await self._sent(self.context.write(data))
            else:
                self.reply = data

    def cut(self) -> None:
        """End the call with the error of a server that stops."""
        self.refuse(unavailable("the server has ended this call", "server_shutdown"))

    async def _sent(self, sending: Awaitable[None]) -> None:
        """Wait until grpcio has sent something; raise ClientGoneError if its client has left."""
        import grpc.aio

        try:
            await sending
        except grpc.aio.InternalError:
            raise ClientGoneError from None

    async def end(self) -> None:
        """Raise the call's error to its client, if it has one."""
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


def _printable(text: str) -> str:
    """Return text as a value of metadata, which has printable ASCII alone."""
    return "".join(each if " " <= each <= "~" else "?" for each in text[:MAX_METADATA_BYTES])
