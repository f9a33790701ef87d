"""A collector that keeps what it receives, over HTTP or gRPC, read by OpenTelemetry's classes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

LIMIT = 300.0  # seconds


class Received:
    """The spans that have come, and a wait for them."""

    def __init__(self) -> None:
        self.resources: list[dict[str, Any]] = []
        self.spans: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self._news = threading.Condition()

    def add(self, request: Any, headers: dict[str, str]) -> None:
        """Keep the spans of one request for export."""
        with self._news:
            for of_resource in request.resource_spans:
                self.resources.append(values(of_resource.resource.attributes))
                for of_scope in of_resource.scope_spans:
                    self.spans += of_scope.spans
            self.headers.append(headers)
            self._news.notify_all()

    def wait(self, count: int) -> list[Any]:
        """Return the spans when there are so many."""
        with self._news:
            assert self._news.wait_for(lambda: len(self.spans) >= count, LIMIT)
            return list(self.spans)


def values(attributes: Any) -> dict[str, Any]:
    """Return attributes as a dictionary of plain values."""
    found: dict[str, Any] = {}
    for each in attributes:
        kind = each.value.WhichOneof("value")
        value = getattr(each.value, kind)
        if kind == "array_value":
            value = [one.string_value for one in value.values]
        found[each.key] = value
    return found


@contextlib.contextmanager
def over_http() -> Iterator[tuple[str, Received]]:
    """Receive at the address that is yielded."""
    service = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    received = Received()

    class Handler(BaseHTTPRequestHandler):
        """The route of traces, and no other."""

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            is_known = self.path == "/v1/traces"
            if is_known:
                request = service.ExportTraceServiceRequest.FromString(body)
                received.add(request, {name.lower(): text for name, text in self.headers.items()})
            self.send_response(200 if is_known else 404)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextlib.contextmanager
def over_grpc() -> Iterator[tuple[str, Received]]:
    """Receive at the address that is yielded."""
    grpc = pytest.importorskip("grpc")
    name = "opentelemetry.proto.collector.trace.v1.trace_service_pb2"
    service = pytest.importorskip(name)
    received = Received()

    def export(request: Any, context: Any) -> Any:
        received.add(request, dict(context.invocation_metadata()))
        return service.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(1))
    handler = grpc.unary_unary_rpc_method_handler(
        export,
        request_deserializer=service.ExportTraceServiceRequest.FromString,
        response_serializer=service.ExportTraceServiceResponse.SerializeToString,
    )
    full_name = "opentelemetry.proto.collector.trace.v1.TraceService"
    handlers = grpc.method_handlers_generic_handler(full_name, {"Export": handler})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"grpc://127.0.0.1:{port}", received
    finally:
        server.stop(None).wait()
