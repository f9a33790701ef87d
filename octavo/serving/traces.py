"""The traces that a server's settings ask for."""

from __future__ import annotations

from octavo import env
from octavo.observe.traces.opentelemetry import (
    EndpointError,
    OpenTelemetryCollector,
    exporter_class,
    protocol_of,
)
from octavo.observe.traces.traces import USUAL, Limits, Traces
from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError


def check_traces(config: ServerSettings) -> None:
    """Refuse an address that cannot be used, before the model is loaded."""
    endpoint = config.otlp_traces_endpoint
    if endpoint is not None:
        try:
            exporter_class(protocol_of(endpoint, env.otlp_protocol()))
            _limits()
        except ValueError as error:
            raise ServerSettingsError(f"otlp_traces_endpoint: {error}") from error


def open_traces(config: ServerSettings, version: str) -> Traces | None:
    """Return the traces of a server; None if none are asked for, or OTEL_SDK_DISABLED is set."""
    endpoint = config.otlp_traces_endpoint
    if endpoint is None or env.traces_are_off():
        return None
    try:
        collector = OpenTelemetryCollector(endpoint, version)
    except EndpointError as error:
        raise ServerSettingsError(f"otlp_traces_endpoint: {error}") from error
    return Traces(collector, _limits(), in_detail=bool(config.collect_detailed_traces))


def _limits() -> Limits:
    """Return the bounds that OpenTelemetry's variables name."""
    most = env.whole_number("OTEL_BSP_MAX_QUEUE_SIZE", USUAL.most_waiting)
    at_once = env.whole_number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", min(most, USUAL.most_sent))
    milliseconds = env.whole_number("OTEL_BSP_SCHEDULE_DELAY", int(USUAL.seconds * 1000))
    return Limits(most, min(at_once, most), milliseconds / 1000)
