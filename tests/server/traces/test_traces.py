"""Traces of a server's requests, as a collector receives them."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.options.server import ServerSettings
from octavo.options.transport import ServerSettingsError
from octavo.serving.traces import check_traces
from tests.observe.traces.receiver import over_http, values
from tests.server.make import serving
from tests.server.test_status_routes import samples

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture(autouse=True)
def library_log() -> Iterator[None]:
    """Restore the library's logger, which a collector takes over."""
    library = logging.getLogger("opentelemetry")
    before = library.propagate, library.level, library.handlers
    yield
    library.propagate, library.level, library.handlers = before


def test_each_request_is_a_trace_without_its_texts(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")

    async def main() -> None:
        with over_http() as (address, received):
            options: dict[str, Any] = {"otlp_traces_endpoint": address}
            options["collect_detailed_traces"] = ("all",)
            async with serving(directory, **options) as client:
                await client.complete(prompt="a secret of the client's", max_tokens=3)
                headers = {"traceparent": f"00-{TRACE}-{SPAN}-01", "x-request-id": "named"}
                body = {"messages": [{"role": "user", "content": "secret"}], "max_tokens": 2}
                body["stream"] = True
                await client.post("/v1/chat/completions", json=body, headers=headers)
                headers["traceparent"] = f"00-{'5' * 32}-{SPAN}-00"  # its client records nothing
                await client.post("/v1/chat/completions", json=body, headers=headers)
                traces = client.server.traces
                assert traces is not None
                await asyncio.to_thread(traces.close)
                text = (await client.get("/metrics")).text
            base = '{model_name="tiny",engine="0"}'
            assert samples(text)[f"octavo:traces_sent_total{base}"] == 2
            assert samples(text)[f"octavo:traces_dropped_total{base}"] == 0
            spans = received.wait(2)
        one, two = (each for each in spans if each.kind == 2)
        assert one.name == "text_completion tiny"
        assert one.parent_span_id == b""
        found = values(one.attributes)
        assert found["gen_ai.usage.output_tokens"] == 3
        assert found["gen_ai.response.finish_reasons"] == ["length"]
        assert found["http.response.status_code"] == 200
        assert (two.trace_id.hex(), two.parent_span_id.hex()) == (TRACE, SPAN)
        found = values(two.attributes)
        assert found["gen_ai.request.id"] == "named"
        assert found["octavo.stream"] is True
        names = [each.name for each in spans if each.trace_id.hex() == TRACE]
        assert [*names[1:5], names[-1]] == ["template", "tokenize", "admission", "queue", "decode"]
        assert "chunk" in names
        assert "secret" not in str(spans)

    asyncio.run(main())


def test_without_a_collector_requests_are_answered_and_traces_counted(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")

    async def main() -> None:
        with socket.socket() as taken:  # bound, and not listening
            taken.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{taken.getsockname()[1]}"
            async with serving(directory, otlp_traces_endpoint=address) as client:
                answers = [await client.complete(max_tokens=2) for _ in range(3)]
                assert all(each["usage"]["completion_tokens"] == 2 for each in answers)
                traces = client.server.traces
                assert traces is not None
                await asyncio.to_thread(traces.close, 300.0)
                assert (traces.num_sent, traces.num_dropped) == (0, 3)

    asyncio.run(main())


def test_the_variable_of_the_library_switches_traces_off(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")

    async def main() -> None:
        async with serving(directory, otlp_traces_endpoint="http://localhost:4318") as client:
            assert client.server.traces is None
            assert "traces_sent" not in (await client.get("/metrics")).text

    asyncio.run(main())


@pytest.mark.parametrize("endpoint", ["collector:4317", "ftp://collector"])
def test_an_address_that_cannot_be_used_ends_the_start(endpoint: str) -> None:
    with pytest.raises(ServerSettingsError, match="otlp_traces_endpoint"):
        check_traces(ServerSettings(otlp_traces_endpoint=endpoint))


def test_details_need_a_collector() -> None:
    with pytest.raises(ServerSettingsError, match="collect_detailed_traces"):
        ServerSettings(collect_detailed_traces=("all",))


def test_a_wrong_variable_ends_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.sdk.trace")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "many")
    with pytest.raises(ServerSettingsError, match="OTEL_BSP_MAX_QUEUE_SIZE"):
        check_traces(ServerSettings(otlp_traces_endpoint="http://localhost:4318"))
