"""The gRPC server beside HTTP: its port, its calls, and the standard health and reflection.

Every call of ours passes through the application, whose checks, admission and errors it shares. Its
message is read when its key is known and it has a place, within the time of a body over HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from octavo.client.socket_directory import SocketDirectory
from octavo.dialects.grpc.call import Call
from octavo.dialects.grpc.dialect import SERVICE, STREAM
from octavo.dialects.grpc.entry import Entry
from octavo.dialects.grpc.health import Health
from octavo.dialects.grpc.inner import Handlers, make_server
from octavo.dialects.grpc.messages import messages
from octavo.dialects.grpc.reflection import Reflection
from octavo.dialects.grpc.relay import Relay
from octavo.dialects.grpc.routes import GRPC_ROUTES
from octavo.options.server import ServerSettings
from octavo.serving.server import Server
from octavo.transport.app import Application
from octavo.transport.connections import Connections
from octavo.transport.errors import ApiError, invalid
from octavo.transport.sockets import bind_grpc
from octavo.transport.tls import Certificates

log = logging.getLogger(__name__)

_LEAST_MESSAGE_BYTES = 1 << 20
_BYTES_PER_TOKEN = 16  # that a message may have for each token of the context
_STREAMS = 128  # calls at once on a connection; a client waits before it begins more
_UNREAD_BYTES = 16 << 10
_GRACE_SECONDS = 0.5  # for calls to end when the server stops
_KEEPALIVE_SECONDS = 60  # of silence, after which a client must acknowledge that it lives


class GrpcServer:
    """The gRPC server of one server; `start` it in the event loop."""

    def __init__(
        self,
        server: Server,
        application: Application,
        connections: Connections,
        certificates: Certificates | None,
    ) -> None:
        assert messages().DESCRIPTOR.services_by_name["Inference"].full_name == SERVICE
        self._server = server
        self._application = application
        self._relay = Relay(connections, certificates)
        largest = largest_message(server.config, server.llm.facts.max_model_len)
        # A message is there twice while grpcio hands it over.
        num_messages = max(1, server.config.max_waiting_bytes // (2 * largest))
        self._entry = Entry(server, self._relay, num_messages)
        self._health = Health(server, self._relay, num_messages)
        reflection = Reflection(self._entry)
        self._inner = make_server(
            {**self._handlers(), **self._health.handlers(), **reflection.handlers()},
            _options(server.config, largest),
        )
        self._directory: SocketDirectory | None = None
        self._watch: asyncio.Task[None] | None = None
        self._add_metrics(connections)
        self.port = 0

    async def start(self) -> None:
        """Bind the port and serve; raise ServerStartError if that is impossible."""
        listening = bind_grpc(self._server.config)
        self.port = listening.getsockname()[1]
        self._directory = SocketDirectory()
        self._inner.add_insecure_port(f"unix:{self._directory.socket}".encode())
        await self._inner.start()
        await self._relay.start(listening, self._directory.socket)
        self._watch = asyncio.get_running_loop().create_task(self._health.report())
        log.info("gRPC is served on port %d", self.port)

    async def stop(self) -> None:
        """End all calls; those that have ended their work are not disturbed."""
        if self._watch is not None:
            self._watch.cancel()
        await self._relay.stop_accepting()
        await self._inner.shutdown(_GRACE_SECONDS)
        await self._relay.stop()
        if self._directory is not None:
            self._directory.close()

    def _add_metrics(self, connections: Connections) -> None:
        add = self._server.metrics.add_gauge
        add("grpc_connections", "Open connections of gRPC.", lambda: connections.num_open)
        add("grpc_calls", "Calls of gRPC with a place.", lambda: self._entry.calls.num_open)
        watches = self._health.watches
        add("grpc_watches", "Calls that watch the health.", lambda: watches.num_taken)

    def _handlers(self) -> Handlers:
        import grpc

        handlers = {}
        for route in GRPC_ROUTES:
            if route.path.endswith(f"/{STREAM}"):
                handlers[route.path] = grpc.stream_stream_rpc_method_handler(self._stream)
            else:
                handlers[route.path] = grpc.stream_unary_rpc_method_handler(self._unary(route.path))
        return handlers

    def _unary(self, path: str) -> Any:
        async def handle(requests: Any, context: Any) -> bytes:
            call = Call(context, path, is_stream=False)
            await self._answer(call)
            return call.reply

        return handle

    async def _stream(self, requests: Any, context: Any) -> None:
        await self._answer(Call(context, f"/{SERVICE}/{STREAM}", is_stream=True))

    async def _answer(self, call: Call) -> None:
        entry = self._entry
        async with entry.ending(call):
            try:
                key = entry.check(call)
            except ApiError as error:
                if error.status != 401:
                    raise
                # The application refuses it, too, and counts and logs it.
                await self._application.answer(call.exchange(self._server, b""))
                return
            message = await entry.read(call, entry.enter(call, key))
            if message is None:
                raise invalid("the call has no message")
            exchange = call.exchange(self._server, message)
            del message  # the exchange drops it when it is translated
            await self._application.answer(exchange)


def largest_message(config: ServerSettings, max_model_len: int) -> int:
    """Return how long a message may be; a longer one would hold the event loop."""
    return min(config.max_body_bytes, _LEAST_MESSAGE_BYTES + _BYTES_PER_TOKEN * max_model_len)


def _options(config: ServerSettings, largest: int) -> dict[str, int]:
    """Return the bounds that grpcio keeps itself."""
    named = {
        "max_receive_message_length": largest,
        "max_send_message_length": -1,  # answers are bounded by `max_response_bytes`
        "max_metadata_size": config.max_header_bytes,
        "absolute_max_metadata_size": config.max_header_bytes,
        "max_concurrent_streams": _STREAMS,
        # What a call may send before its message is read: it does not grow with the line's speed.
        "http2.lookahead_bytes": _UNREAD_BYTES,
        "http2.bdp_probe": 0,
        "max_connection_idle_ms": int(1000 * config.idle_seconds),
        "keepalive_time_ms": 1000 * _KEEPALIVE_SECONDS,
        "keepalive_timeout_ms": int(1000 * config.stall_seconds),
        "http2.settings_timeout": int(1000 * config.header_seconds),
        "http2.max_ping_strikes": 2,
        "http2.min_ping_interval_without_data_ms": 10_000,
    }
    return {f"grpc.{name}": value for name, value in named.items()}
