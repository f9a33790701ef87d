"""The gRPC server beside HTTP: its port, its calls, and the standard health and reflection.

Every call of ours passes through the application, whose checks, admission and errors it shares.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from octavo.server.grpc.call import Call
from octavo.server.grpc.dialect import GRPC, SERVICE, STREAM
from octavo.server.grpc.messages import messages
from octavo.server.grpc.routes import GRPC_ROUTES
from octavo.server.http.app import Application
from octavo.server.http.errors import ApiError
from octavo.server.server import Server
from octavo.server.settings import ServerSettings, ServerStartError, reason

log = logging.getLogger(__name__)

HEALTH_SECONDS = 1.0  # between two looks at the server's state for those who watch it
_LEAST_MESSAGE_BYTES = 1 << 20
_BYTES_PER_TOKEN = 16  # that a message may have for each token of the context
_HEALTH = "grpc.health.v1.Health"
_REFLECTION = "grpc.reflection."


class GrpcServer:
    """The gRPC server of one server; `start` it in the event loop."""

    def __init__(self, server: Server) -> None:
        import grpc
        import grpc.aio

        self._server = server
        self._application = Application(server, GRPC_ROUTES, GRPC)
        config = server.config
        self._inner = grpc.aio.server(
            interceptors=(_access_to_reflection(server),),
            options=tuple(_options(config, server.llm.facts.max_model_len).items()),
            maximum_concurrent_rpcs=config.max_connections,
        )
        handlers = {}
        for route in GRPC_ROUTES:
            name = route.path.rpartition("/")[2]
            if name == STREAM:
                handlers[name] = grpc.unary_stream_rpc_method_handler(self._stream)
            else:
                handlers[name] = grpc.unary_unary_rpc_method_handler(self._unary(route.path))
        generic = grpc.method_handlers_generic_handler(SERVICE, handlers)
        self._inner.add_generic_rpc_handlers((generic,))
        self._health = _add_health(self._inner)
        self._watch: asyncio.Task[None] | None = None
        self.port = 0

    async def start(self) -> None:
        """Bind the port and serve; raise ServerStartError if that is impossible."""
        config = self._server.config
        host = f"[{config.host}]" if ":" in config.host else config.host
        address = f"{host}:{config.grpc_port}"
        try:
            if config.ssl_certfile is None:
                self.port = self._inner.add_insecure_port(address)
            else:
                self.port = self._inner.add_secure_port(address, _credentials(config))
        except (RuntimeError, OSError) as error:
            why = reason(error) if isinstance(error, OSError) else "it is in use, or not allowed"
            raise ServerStartError(
                f"--grpc-port: {address} cannot be bound: {why}; choose another port"
            ) from error
        await self._inner.start()
        self._watch = asyncio.get_running_loop().create_task(self._report_health())
        log.info("gRPC is served on port %d", self.port)

    async def stop(self) -> None:
        """End all calls; those that have ended their work are not disturbed."""
        if self._watch is not None:
            self._watch.cancel()
        await self._inner.stop(0.5)

    def _unary(self, path: str) -> Any:
        async def handle(request: bytes, context: Any) -> bytes:
            call = Call(context, request, path, is_stream=False)
            async with _ending(call):
                await self._application(call.scope, call.receive, call.send)
            return call.reply

        return handle

    async def _stream(self, request: bytes, context: Any) -> None:
        call = Call(context, request, f"/{SERVICE}/{STREAM}", is_stream=True)
        async with _ending(call):
            await self._application(call.scope, call.receive, call.send)

    async def _report_health(self) -> None:
        from grpc_health.v1.health_pb2 import HealthCheckResponse

        while True:
            is_ready = self._server.refusal() is None and self._server.canary.is_well
            state = HealthCheckResponse.SERVING if is_ready else HealthCheckResponse.NOT_SERVING
            for name in ("", SERVICE):
                await self._health.set(name, state)
            await asyncio.sleep(HEALTH_SECONDS)


@contextlib.asynccontextmanager
async def _ending(call: Call) -> AsyncIterator[None]:
    try:
        yield
    except asyncio.CancelledError:  # the client has left, or its deadline has passed
        call.error = None
        raise
    finally:
        await call.end()


def _options(config: ServerSettings, max_model_len: int) -> dict[str, int]:
    """Return the bounds; a larger message would hold the event loop while it is parsed."""
    largest = _LEAST_MESSAGE_BYTES + _BYTES_PER_TOKEN * max_model_len
    return {
        "grpc.max_receive_message_length": min(config.max_body_bytes, largest),
        "grpc.max_send_message_length": -1,  # answers are bounded by `max_response_bytes`
        "grpc.max_metadata_size": config.max_header_bytes,
        "grpc.absolute_max_metadata_size": config.max_header_bytes,
        "grpc.so_reuseport": 0,  # or two servers would share a port without a sign
        "grpc.max_connection_idle_ms": int(1000 * config.idle_seconds),
        "grpc.http2.max_ping_strikes": 2,
        "grpc.http2.min_ping_interval_without_data_ms": 10_000,
    }


def _credentials(config: ServerSettings) -> Any:
    import grpc

    assert config.ssl_certfile is not None
    chain = config.ssl_certfile.read_bytes()
    key = Path(config.ssl_keyfile or config.ssl_certfile).read_bytes()
    roots = None if config.ssl_ca_certs is None else config.ssl_ca_certs.read_bytes()
    return grpc.ssl_server_credentials(
        ((key, chain),),
        root_certificates=roots if config.ssl_cert_reqs else None,
        require_client_auth=config.ssl_cert_reqs == 2,
    )


def _add_health(inner: Any) -> Any:
    """Add health and reflection; return the servicer of health."""
    from grpc_health.v1 import health, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection

    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, inner)
    assert messages().DESCRIPTOR.services_by_name["Inference"].full_name == SERVICE
    names = (SERVICE, _HEALTH, reflection.SERVICE_NAME)
    reflection.enable_server_reflection(names, inner)
    return servicer


def _access_to_reflection(server: Server) -> Any:
    """Return the interceptor that wants a key for reflection; our own calls check theirs."""
    import grpc
    import grpc.aio

    async def refuse(requests: Any, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "reflection needs an API key")

    refused = grpc.stream_stream_rpc_method_handler(refuse)

    class Access(grpc.aio.ServerInterceptor):  # type: ignore[misc]
        """Lets calls of reflection pass only with a key, if there are keys."""

        async def intercept_service(self, continuation: Any, details: Any) -> Any:
            path = details.method
            if path.startswith(f"/{_REFLECTION}"):
                metadata = {
                    name: value
                    for name, value in details.invocation_metadata or ()
                    if isinstance(value, str)
                }
                try:
                    server.access.check_key(path, metadata)
                except ApiError:
                    return refused
            return await continuation(details)

    return Access()
