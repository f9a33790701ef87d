"""The way into the server for calls that need a key: their places, messages and ends."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from octavo.dialects.grpc.call import Call
from octavo.dialects.grpc.places import CallPlaces, MessagePlaces
from octavo.dialects.grpc.relay import Relay
from octavo.serving.server import Server
from octavo.transport.errors import ApiError


class Entry:
    """The places of one server's calls, which are given in the order of the checks."""

    def __init__(self, server: Server, relay: Relay, num_messages: int) -> None:
        self._server = server
        self._relay = relay
        self.calls = CallPlaces(server.config)
        self._messages = MessagePlaces(num_messages)

    def check(self, call: Call) -> str:
        """Return the name of a call's key; raise ApiError if it has none, or too much metadata."""
        most = self._server.config.max_headers
        if call.num_values > most:
            message = f"the call has {call.num_values} values of metadata, and the limit is {most}"
            raise ApiError(431, message)
        return self._server.access.check_key(call.head.path, call.head.headers)

    def enter(self, call: Call, key: str) -> str:
        """Count a call until its end; return who has the place: the key or else the client.

        Raise ApiError if there is no place for it.
        """
        connection = self._relay.find(call.context.peer())
        if connection is not None and connection.refusal is not None:
            raise connection.refusal
        client = "" if connection is None else connection.client
        call.held.enter_context(self.calls.place(key, client))
        return key or client

    async def read(self, call: Call, owner: str) -> bytes | None:
        """Return the next message of a call, None at its end; raise ApiError if it is late."""
        import grpc

        seconds = self._server.config.body_seconds
        try:
            async with asyncio.timeout(seconds), self._messages.place(owner):
                message: bytes = await call.context.read()
        except TimeoutError:
            raise ApiError(408, f"the message did not arrive within {seconds:g} s") from None
        return None if message is grpc.aio.EOF else message

    @contextlib.asynccontextmanager
    async def ending(self, call: Call) -> AsyncIterator[None]:
        """End a call with the error of the block, or with the one that it has.

        What the call holds is free when its client has its end, with grpcio's task. A client that
        reads nothing never has it: only the end of the connection ends such a call.
        """
        connection = self._relay.find(call.context.peer())
        task = asyncio.current_task()
        assert task is not None, "grpcio runs a handler in a task"
        task.add_done_callback(lambda _: call.held.close())
        try:
            try:
                yield
            except ApiError as error:
                self._server.metrics.protocol_refusals.add(1, str(error.status))
                call.refuse(error)
        except asyncio.CancelledError:  # the client has left, or its deadline has passed
            call.error = None
            raise
        finally:
            if connection is not None:
                seconds = self._server.config.stall_seconds
                timer = asyncio.get_running_loop().call_later(seconds, connection.abort)
                call.held.callback(timer.cancel)
            await call.end()
