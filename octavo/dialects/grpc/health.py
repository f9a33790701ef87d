"""The standard health service, for two names; it needs no key and no place among the calls.

What it keeps of a caller is one of a bounded number of watches. It waits for no call of others:
when too many callers send a message or watch, the oldest of the one with most ends.
"""

from __future__ import annotations

import asyncio
from typing import Any

from octavo.dialects.grpc.dialect import SERVICE
from octavo.dialects.grpc.inner import Handlers
from octavo.dialects.grpc.places import MAX_WATCHES, OpenPlaces
from octavo.dialects.grpc.relay import Relay
from octavo.serving.server import Server

NAME = "grpc.health.v1.Health"
SECONDS = 1.0  # between two looks at the server's state for those who watch it
_KNOWN = ("", SERVICE)  # services that have a state: the whole server, and ours
_MAX_BYTES = 1024  # of a request


class Health:
    """The state of one server, for those who ask and those who watch it."""

    def __init__(self, server: Server, relay: Relay, num_messages: int) -> None:
        from grpc_health.v1 import health_pb2

        self._kinds: Any = health_pb2
        self._server = server
        self._relay = relay
        self._messages = OpenPlaces(num_messages)
        self.watches = OpenPlaces(MAX_WATCHES)
        self._is_ready = False
        self._changed = asyncio.Event()

    def handlers(self) -> Handlers:
        """Return the handlers of grpcio by their paths."""
        import grpc

        return {
            f"/{NAME}/Check": grpc.stream_unary_rpc_method_handler(self._check),
            f"/{NAME}/List": grpc.stream_unary_rpc_method_handler(self._list),
            f"/{NAME}/Watch": grpc.stream_stream_rpc_method_handler(self._watch),
        }

    async def report(self) -> None:
        """Notify the calls that watch whenever the state has changed; never return."""
        while True:
            is_ready = self._server.refusal() is None and self._server.canary.is_well
            if is_ready != self._is_ready:
                self._is_ready = is_ready
                self._changed.set()
                self._changed = asyncio.Event()
            await asyncio.sleep(SECONDS)

    async def _check(self, requests: Any, context: Any) -> bytes:
        import grpc

        name = await self._name(context)
        if name not in _KNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "this service has no state here")
        return self._state(name)

    async def _list(self, requests: Any, context: Any) -> bytes:
        await self._name(context)
        kind = self._kinds.HealthCheckResponse
        states = {name: kind.FromString(self._state(name)) for name in _KNOWN}
        listed: bytes = self._kinds.HealthListResponse(statuses=states).SerializeToString()
        return listed

    async def _watch(self, requests: Any, context: Any) -> None:
        import grpc

        name = await self._name(context)
        written = None
        try:
            async with self.watches.place(self._client(context), None):
                while True:
                    changed, state = self._changed, self._state(name)
                    if state != written:
                        await context.write(state)
                        written = state
                    await changed.wait()
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED, "there are too many watches; watch again"
            )

    def _state(self, name: str | None) -> bytes:
        kind = self._kinds.HealthCheckResponse
        if name not in _KNOWN:
            state = kind.SERVICE_UNKNOWN
        else:
            state = kind.SERVING if self._is_ready else kind.NOT_SERVING
        written: bytes = kind(status=state).SerializeToString()
        return written

    async def _name(self, context: Any) -> str | None:
        """Return the name of the service that is asked for; None for one that is not known."""
        import grpc
        from google.protobuf.message import DecodeError

        try:
            seconds = self._server.config.header_seconds
            async with self._messages.place(self._client(context), seconds):
                message = await context.read()
        except TimeoutError:
            await context.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED, "the message did not arrive in time"
            )
        if message is grpc.aio.EOF or len(message) > _MAX_BYTES:
            wrong = f"a request for health has one message of at most {_MAX_BYTES} bytes"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        try:
            name: str = self._kinds.HealthCheckRequest.FromString(message).service
        except DecodeError:
            wrong = "the message is no grpc.health.v1.HealthCheckRequest"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, wrong)
        return name if name in _KNOWN else None

    def _client(self, context: Any) -> str:
        connection = self._relay.find(context.peer())
        return "" if connection is None else connection.client
