"""OpenTelemetry's own exporters, towards a collector that reads what comes."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from octavo.observe.traces import opentelemetry as ours
from octavo.observe.traces.context import TraceContext
from octavo.observe.traces.opentelemetry import (
    EndpointError,
    OpenTelemetryCollector,
    protocol_of,
    without_credentials,
)
from octavo.observe.traces.spans import spans_of
from tests.observe.traces.receiver import over_grpc, over_http, values
from tests.observe.traces.test_traces import TRACE, ended

SPAN_KIND_INTERNAL, SPAN_KIND_SERVER = 1, 2  # of the protocol
ERROR = 2


@pytest.fixture(autouse=True)
def library_log() -> Iterator[None]:
    """Restore the library's logger, which a collector takes over."""
    library = logging.getLogger("opentelemetry")
    before = library.propagate, library.level, library.handlers
    yield
    library.propagate, library.level, library.handlers = before


@pytest.mark.parametrize("way", [over_http, over_grpc])
def test_a_collector_receives_the_spans(way: object, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=ours")
    trace = TRACE._replace(parent_id="1" * 16)
    with way() as (address, received):  # type: ignore[operator]
        collector = OpenTelemetryCollector(address, "1.2.3")
        request = ended(trace, outcome="failed", finish_reasons=["stop", "length"])
        assert collector.send(list(spans_of(request, in_detail=True))) == ""
        collector.close()
        whole, *parts = received.wait(9)
    assert received.headers[0]["x-tenant"] == "ours"
    resource = received.resources[0]
    assert resource["service.name"] == "octavo"
    assert resource["service.version"] == "1.2.3"
    assert resource["deployment.environment.name"] == "test"
    assert whole.name == "chat tiny"
    assert whole.trace_id.hex() == trace.trace_id
    assert (whole.span_id.hex(), whole.parent_span_id.hex()) == (trace.span_id, "1" * 16)
    assert (whole.kind, whole.status.code) == (SPAN_KIND_SERVER, ERROR)
    assert whole.end_time_unix_nano - whole.start_time_unix_nano == 2_000_000_000
    found = values(whole.attributes)
    assert found["gen_ai.usage.input_tokens"] == 9
    assert found["gen_ai.response.finish_reasons"] == ["stop", "length"]
    assert {each.kind for each in parts} == {SPAN_KIND_INTERNAL}
    by_id = {each.span_id for each in [whole, *parts]}
    assert all(each.parent_span_id in by_id for each in parts)


@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_a_collector_that_is_not_there_is_a_reason(
    scheme: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The library writes no line of its own."""
    pytest.importorskip("opentelemetry.sdk.trace")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with socket.socket() as taken:  # bound, and not listening
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        collector = OpenTelemetryCollector(f"{scheme}://127.0.0.1:{port}", "1")
        assert collector.send(list(spans_of(ended(), in_detail=False)))
        collector.close()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("sampler", "argument", "expected"),
    [("always_off", "", False), ("traceidratio", "0", False), ("traceidratio", "1", True)],
)
def test_the_sampler_is_that_of_the_variables(
    sampler: str, argument: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
    collector = OpenTelemetryCollector("http://127.0.0.1:4318", "1")
    assert collector.is_sampled(None, TRACE.trace_id) is expected


def test_by_default_a_client_decides_whether_its_trace_is_recorded() -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    collector = OpenTelemetryCollector("http://127.0.0.1:4318", "1")
    for is_sampled in (True, False):
        parent = TraceContext("a" * 32, "b" * 16, is_sampled)
        assert collector.is_sampled(parent, parent.trace_id) is is_sampled
    assert collector.is_sampled(None, "a" * 32)


@pytest.mark.parametrize(
    ("endpoint", "named", "expected"),
    [
        ("http://c:4318/v1/traces", "", "http/protobuf"),
        ("https://c/otlp", "", "http/protobuf"),
        ("http://c:4317", "", "grpc"),
        ("grpc://c:9999", "", "grpc"),
        ("http://c:4317", "http/protobuf", "http/protobuf"),
        ("http://c:4318", "grpc", "grpc"),
    ],
)
def test_the_protocol_is_named_or_follows_from_the_address(
    endpoint: str, named: str, expected: str
) -> None:
    assert protocol_of(endpoint, named) == expected


@pytest.mark.parametrize(
    ("endpoint", "named"),
    [
        ("collector:4317", ""),
        ("http://", ""),
        ("ftp://c", ""),
        ("http://c:x", ""),
        ("http://c", "z"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(endpoint: str, named: str) -> None:
    with pytest.raises(EndpointError):
        protocol_of(endpoint, named)


def test_the_log_shows_no_credentials_of_an_address() -> None:
    assert without_credentials("https://me:secret@host:4318/v1/traces") == (
        "https://host:4318/v1/traces"
    )
    assert OpenTelemetryCollector("http://me:secret@[::1]:9", "1").address == "http://[::1]:9"


def test_without_the_library_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(ours._EXPORTERS, "grpc", "a_module_that_is_not_there")
    with pytest.raises(EndpointError, match=r"octavo\[otel\]"):
        ours.exporter_class("grpc")
