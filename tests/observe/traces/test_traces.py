"""The queue of traces: it never waits, has a bound, and a collector that fails costs one line."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

import pytest

from octavo.core.stats import PrefillChunk, RequestStats
from octavo.observe.explain import Record
from octavo.observe.traces.context import TraceContext
from octavo.observe.traces.spans import Ended, Span, operation_of, spans_of
from octavo.observe.traces.traces import Limits, Traces

LIMIT = 300.0
TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", True)


class FakeCollector:
    """A collector whose deliveries wait for a gate, and fail while it has a reason."""

    address = "http://collector"

    def __init__(self) -> None:
        self.reason = ""
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.sent: list[Span] = []
        self.num_sends = 0
        self.samples = True

    def is_sampled(self, parent: TraceContext | None, trace_id: str) -> bool:
        return self.samples if parent is None else parent.is_sampled

    def send(self, spans: Sequence[Span]) -> str:
        self.entered.set()
        assert self.gate.wait(LIMIT)
        self.num_sends += 1
        if self.reason == "raise":
            raise RuntimeError("a fault of the library")
        if not self.reason:
            self.sent += spans
        return self.reason

    def wait_for(self, num_sends: int) -> None:
        """Wait until so many deliveries have been tried."""
        end = time.monotonic() + LIMIT
        while self.num_sends < num_sends:
            assert time.monotonic() < end
            time.sleep(0.001)

    def close(self) -> None:
        self.gate.set()


def ended(trace: TraceContext = TRACE, **fields: object) -> Ended:
    """Return a request with one phase of each kind, two seconds after it began."""
    stats = RequestStats(
        arrival=10.2,
        num_prompt_tokens=9,
        added_at=10.3,
        first_planned_at=10.5,
        first_token_at=11.0,
        finished_at=12.0,
        num_cached_tokens=4,
        chunks=[PrefillChunk(4, 6, 10.5, 10.75), PrefillChunk(6, 9, 10.75, 11.0)],
    )
    record = Record(
        *("request", "owner", 10.0),
        template_seconds=0.05,
        tokenize_seconds=0.1,
        prepared_at=10.2,
        entered_at=10.3,
        ended_at=12.0,
        stats=stats,
        num_prompt_tokens=9,
        num_output_tokens=5,
        outcome="finished",
        parameters={"max_tokens": 5, "temperature": 0.5, "top_p": 1.0, "n": 1, "seed": None},
    )
    for name, value in fields.items():
        setattr(record, name, value)
    return Ended(record, trace, "tiny", "POST", "/v1/chat/completions", 200)


def test_a_request_has_a_span_and_each_phase_one_below_it() -> None:
    whole, *parts = spans_of(ended(), in_detail=False)
    assert (whole.name, whole.begin, whole.end) == ("chat tiny", 10.0, 12.0)
    assert [(each.name, each.begin, each.end) for each in parts] == [
        ("template", pytest.approx(10.05), pytest.approx(10.1)),
        ("tokenize", pytest.approx(10.1), 10.2),
        ("admission", 10.2, 10.3),
        ("queue", 10.3, 10.5),
        ("prefill", 10.5, 11.0),
        ("decode", 11.0, 12.0),
    ]
    assert {each.trace.parent_id for each in parts} == {TRACE.span_id}
    assert {each.trace.trace_id for each in parts} == {TRACE.trace_id}
    assert len({each.trace.span_id for each in [whole, *parts]}) == 7


def test_the_attributes_are_those_of_the_conventions_and_of_vllm() -> None:
    whole = next(spans_of(ended(finish_reasons=["length"]), in_detail=False))
    times = {key: value for key, value in whole.attributes.items() if "latency" in key}
    assert times == {
        "gen_ai.latency.e2e": 2.0,
        "gen_ai.latency.time_to_first_token": 1.0,
        "gen_ai.latency.time_in_queue": 0.5,
        "gen_ai.latency.time_in_model_prefill": 0.5,
        "gen_ai.latency.time_in_model_decode": 1.0,
        "gen_ai.latency.time_in_model_inference": 1.5,
    }
    assert {key: value for key, value in whole.attributes.items() if key not in times} == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": "tiny",
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.request.id": "request",
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.choice.count": 1,
        "gen_ai.request.n": 1,
        "gen_ai.usage.num_sequences": 1,
        "gen_ai.usage.input_tokens": 9,
        "gen_ai.usage.prompt_tokens": 9,
        "gen_ai.usage.output_tokens": 5,
        "gen_ai.usage.completion_tokens": 5,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "octavo.outcome": "finished",
        "octavo.stream": False,
        "octavo.preemptions": 0,
        "octavo.engine_restarts": 0,
        "octavo.accepted_draft_tokens": 0,
    }


def test_in_detail_each_chunk_has_a_span_below_its_phase() -> None:
    spans = list(spans_of(ended(), in_detail=True))
    prefill = next(each for each in spans if each.name == "prefill")
    chunks = [each for each in spans if each.name == "chunk"]
    assert {each.trace.parent_id for each in chunks} == {prefill.trace.span_id}
    assert [tuple(each.attributes.values()) for each in chunks] == [(4, 6), (6, 9)]


def test_a_request_that_the_engine_never_had_has_what_is_known_of_it() -> None:
    request = ended(stats=None, entered_at=None, outcome="cancelled")
    whole, *parts = spans_of(request, in_detail=True)
    assert (whole.error, whole.attributes["error.type"]) == ("cancelled", "cancelled")
    assert [each.name for each in parts] == ["template", "tokenize", "admission"]
    assert parts[-1].end == 12.0


@pytest.mark.parametrize(
    ("route", "operation"),
    [
        ("/v1/chat/completions", "chat"),
        ("/v1/messages", "chat"),
        ("/v1/completions", "text_completion"),
        ("/v1/embeddings", "embeddings"),
        ("/infill", "text_completion"),
    ],
)
def test_the_operation_follows_from_the_route(route: str, operation: str) -> None:
    assert operation_of(route) == operation


def test_a_request_continues_the_trace_of_its_client_and_its_choice() -> None:
    traces = Traces(FakeCollector())
    parent = TraceContext("a" * 32, "b" * 16, False)
    span = traces.begin(parent)
    assert (span.trace_id, span.parent_id, span.is_sampled) == ("a" * 32, "b" * 16, False)
    one, two = traces.begin(None), traces.begin(None)
    assert one.is_sampled
    assert one.parent_id == ""
    assert len({one.trace_id, two.trace_id, parent.trace_id}) == 3
    assert len({one.span_id, two.span_id, parent.span_id}) == 3
    traces.close()


def test_what_is_left_is_sent_at_the_end_and_what_is_not_sampled_never() -> None:
    collector = FakeCollector()
    traces = Traces(collector, Limits(seconds=LIMIT))
    traces.add(ended())
    traces.add(ended(TRACE._replace(is_sampled=False)))
    traces.close()
    assert sum(each.is_request for each in collector.sent) == 1
    assert (traces.num_sent, traces.num_dropped) == (1, 0)
    traces.add(ended())
    assert traces.num_dropped == 1


def test_a_slow_collector_fills_a_queue_with_a_bound() -> None:
    collector = FakeCollector()
    collector.gate.clear()
    traces = Traces(collector, Limits(most_waiting=3, most_sent=2, seconds=LIMIT))
    traces.add(ended())
    traces.add(ended())  # enough to be sent
    assert collector.entered.wait(LIMIT)
    for _ in range(5):
        traces.add(ended())
    assert traces.num_dropped == 2
    collector.gate.set()
    traces.close()
    assert (traces.num_sent, traces.num_dropped) == (5, 2)


@pytest.mark.parametrize("reason", ["connection refused", "raise"])
def test_an_outage_is_two_lines_of_the_log_and_a_count(
    reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    collector = FakeCollector()
    collector.reason = reason
    caplog.set_level(logging.INFO)
    traces = Traces(collector, Limits(most_sent=1, seconds=0.001))
    for count in range(1, 4):
        traces.add(ended())
        collector.wait_for(count)
    collector.reason = ""
    traces.add(ended())
    collector.wait_for(4)
    traces.close()
    assert (traces.num_sent, traces.num_dropped) == (1, 3)
    levels = [each.levelname for each in caplog.records if each.name.startswith("octavo")]
    assert levels == ["WARNING", "INFO"]


def test_the_end_does_not_wait_for_a_collector_that_is_silent() -> None:
    collector = FakeCollector()
    collector.gate.clear()
    traces = Traces(collector, Limits(most_sent=1, seconds=0.001))
    traces.add(ended())
    assert collector.entered.wait(LIMIT)
    traces.add(ended())
    traces.close(0.01)  # closing the collector opens the gate
    traces._thread.join(LIMIT)
    assert traces.num_sent + traces.num_dropped == 2
