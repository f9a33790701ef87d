"""OpenTelemetry's ASGI middleware for `tests.clients.server`, writing its spans to a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor


def trace(application: Any) -> Any:
    """Return the application, each span a line of JSON in `spans`, beside the model's directory."""
    path = Path(sys.argv[1]).with_name("spans")
    file = path.open("w", encoding="utf-8", buffering=1)
    exporter = ConsoleSpanExporter(
        out=file, formatter=lambda span: (span.to_json(indent=None) or "") + "\n"
    )
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return OpenTelemetryMiddleware(application, tracer_provider=provider)
