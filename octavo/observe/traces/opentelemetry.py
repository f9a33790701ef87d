"""The connection to a collector of OpenTelemetry, by its own library (`octavo[otel]`).

The library's variables mean what they mean elsewhere: those of the resource, the sampler, headers,
certificates, compression and times. Only what it does with spans while requests run is ours.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from octavo import env
from octavo.observe.traces.context import TraceContext
from octavo.observe.traces.spans import Span

GRPC, HTTP = "grpc", "http/protobuf"
_GRPC_PORT = 4317  # of collectors, by convention
_EXPORTERS = {
    GRPC: "opentelemetry.exporter.otlp.proto.grpc.trace_exporter",
    HTTP: "opentelemetry.exporter.otlp.proto.http.trace_exporter",
}
_LIBRARY = "opentelemetry"  # the beginning of its loggers' names
_LONGEST_REASON = 200  # characters of what it says about a failure


class EndpointError(ValueError):
    """An error for a collector's address that cannot be used; its message says what to change."""


def protocol_of(endpoint: str, named: str) -> str:
    """Return the protocol of an address: the one that is named, or what its form shows."""
    if named and named not in _EXPORTERS:
        raise EndpointError(
            f"the protocol of traces is {named!r} (OTEL_EXPORTER_OTLP_TRACES_PROTOCOL), and must "
            f"be one of {', '.join(_EXPORTERS)}"
        )
    try:
        parts = urlsplit(endpoint)
        port = parts.port
    except ValueError as error:
        raise EndpointError(f"{endpoint!r} is no address: {error}") from error
    if parts.scheme not in ("http", "https", "grpc", "grpcs") or not parts.hostname:
        raise EndpointError(
            f"{endpoint!r} must be the address of a collector, as in "
            "http://localhost:4318/v1/traces or grpc://localhost:4317"
        )
    if named:
        return named
    return GRPC if parts.scheme.startswith("grpc") or port == _GRPC_PORT else HTTP


def without_credentials(endpoint: str) -> str:
    """Return an address as the log shows it: a name and a password before its host are left out."""
    parts = urlsplit(endpoint)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def exporter_class(protocol: str) -> Any:
    """Return the library's exporter; raise EndpointError if it is not installed."""
    try:
        return importlib.import_module(_EXPORTERS[protocol]).OTLPSpanExporter
    except ImportError as error:
        raise EndpointError(
            f"traces over {protocol} need {error.name or error}, which is not installed: "
            "pip install 'octavo[otel]'"
        ) from None


class _LastLine(logging.Handler):
    """A handler that keeps the last line, of which the next failure is explained."""

    text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage().partition("\n")[0][:_LONGEST_REASON]


class OpenTelemetryCollector:
    """A collector that is reached by OTLP, over gRPC or HTTP."""

    def __init__(self, endpoint: str, version: str) -> None:
        protocol = protocol_of(endpoint, env.otlp_protocol())
        exporter = exporter_class(protocol)
        from opentelemetry import trace
        from opentelemetry.sdk import trace as sdk
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self.address = without_credentials(endpoint)
        self._api, self._sdk = trace, sdk
        self._log = _LastLine(logging.INFO)
        _silence(self._log)
        given = Resource.create()  # the variables' attributes
        names_itself = str(given.attributes.get("service.name", "")).startswith("unknown_service")
        service = {"service.name": "octavo"} if names_itself else {}
        self._resource = given.merge(Resource({**service, "service.version": version}))
        self._sampler = sdk.TracerProvider(resource=self._resource).sampler
        self._scope = InstrumentationScope("octavo", version)
        self._exporter = _connect(exporter, protocol, endpoint)

    def is_sampled(self, parent: TraceContext | None, trace_id: str) -> bool:
        api, context = self._api, None
        if parent is not None:
            span = api.NonRecordingSpan(
                self._context(parent.trace_id, parent.span_id, parent, True)
            )
            context = api.set_span_in_context(span)
        chosen = self._sampler.should_sample(context, int(trace_id, 16), "request")
        return bool(chosen.decision.is_sampled())

    def send(self, spans: Sequence[Span]) -> str:
        offset = time.time_ns() - time.monotonic_ns()
        self._log.text = ""
        result = self._exporter.export([self._read(span, offset) for span in spans])
        return "" if result.value == 0 else self._log.text or "it could not be reached"

    def close(self) -> None:
        self._exporter.shutdown()

    def _context(
        self, trace_id: str, span_id: str, of: TraceContext, is_remote: bool = False
    ) -> Any:
        flags = self._api.TraceFlags(int(of.is_sampled))
        return self._api.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote, flags)

    def _read(self, span: Span, offset: int) -> Any:
        """Return a span as the exporter reads it."""
        api, trace = self._api, span.trace
        parent = None
        if trace.parent_id:
            parent = self._context(trace.trace_id, trace.parent_id, trace, span.is_request)
        status = api.Status(api.StatusCode.ERROR, span.error) if span.error else api.Status()
        return self._sdk.ReadableSpan(
            name=span.name,
            context=self._context(trace.trace_id, trace.span_id, trace),
            parent=parent,
            resource=self._resource,
            attributes=dict(span.attributes),
            kind=api.SpanKind.SERVER if span.is_request else api.SpanKind.INTERNAL,
            status=status,
            start_time=int(span.begin * 1e9) + offset,
            end_time=int(max(span.begin, span.end) * 1e9) + offset,
            instrumentation_scope=self._scope,
        )


def _silence(handler: logging.Handler) -> None:
    """Let the library's lines go to `handler` alone: a failure is one line of ours, not of each."""
    library = logging.getLogger(_LIBRARY)
    library.propagate = False
    library.setLevel(logging.INFO)
    library.handlers = [handler]


def _connect(exporter: Any, protocol: str, endpoint: str) -> Any:
    parts = urlsplit(endpoint)
    if protocol == GRPC:
        return exporter(endpoint=parts.netloc, insecure=parts.scheme in ("http", "grpc"))
    if parts.path in ("", "/"):
        parts = parts._replace(path="/v1/traces")
    return exporter(endpoint=parts.geturl())
