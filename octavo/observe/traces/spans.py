"""The spans of a request: one of it as a whole, and one of each phase of its timeline.

Attributes have the names of OpenTelemetry's conventions for generative AI, and beside these vLLM's
where they differ. None has a text of a prompt or of an answer.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.observe.explain import MAX_PARTS, Phase, Record, phases
from octavo.observe.traces.context import TraceContext

Value = str | int | float | bool | list[str]
CHAT, EMBEDDINGS, TEXT = "chat", "embeddings", "text_completion"
# What a route computes, by a word of its name; the first that fits.
_OPERATIONS = (
    *(
        ("embed", EMBEDDINGS),
        ("pooling", EMBEDDINGS),
        ("rerank", EMBEDDINGS),
        ("score", EMBEDDINGS),
    ),
    *(("classify", EMBEDDINGS), ("decisions", EMBEDDINGS)),
    *(("chat", CHAT), ("messages", CHAT), ("responses", CHAT)),
)
# Ours, by the names of `Record.parameters`; what is None is left out.
_PARAMETERS = {
    "max_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "n": "gen_ai.request.choice.count",
}


class Ended(NamedTuple):
    """A request that has ended, as far as its spans show it."""

    record: Record
    trace: TraceContext
    model: str  # the name that its answer has
    method: str
    route: str
    status: int | None  # None: nothing was answered


@dataclass(slots=True)
class Span:
    """A span; times are those of the monotonic clock."""

    name: str
    trace: TraceContext
    begin: float
    end: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str = ""
    is_request: bool = False


def operation_of(route: str) -> str:
    """Return what a route computes, by the conventions' names."""
    return next((operation for word, operation in _OPERATIONS if word in route), TEXT)


def spans_of(ended: Ended, *, in_detail: bool) -> Iterator[Span]:
    """Yield the spans of a request, the one of the whole first; in detail also one a chunk."""
    record = ended.record
    assert record.ended_at is not None, "the request has ended"
    error = "" if record.outcome == "finished" else record.outcome
    name = f"{operation_of(ended.route)} {ended.model}"
    attributes = _attributes(ended)
    whole = Span(name, ended.trace, record.began, record.ended_at, attributes, error, True)
    yield whole
    yield from _before_engine(record, whole.trace)
    if record.stats is None:
        return
    num_chunks = 0
    for phase in phases(record.stats, record.ended_at):
        span = Span(phase.kind, _below(whole.trace), phase.begin, max(phase.begin, phase.end))
        yield span
        if in_detail and num_chunks < MAX_PARTS:
            yield from _chunks(phase, span.trace, MAX_PARTS - num_chunks)
            num_chunks += len(phase.chunks)


def _below(parent: TraceContext) -> TraceContext:
    return TraceContext(parent.trace_id, secrets.token_hex(8), parent.is_sampled, parent.span_id)


def _before_engine(record: Record, parent: TraceContext) -> Iterator[Span]:
    prepared, end = record.prepared_at, record.ended_at
    if prepared is None or end is None:
        return
    tokenising = prepared - record.tokenize_seconds
    entered = end if record.entered_at is None else record.entered_at
    for name, begin, until in (
        ("template", tokenising - record.template_seconds, tokenising),
        ("tokenize", tokenising, prepared),
        ("admission", prepared, entered),
    ):
        yield Span(name, _below(parent), begin, until)


def _chunks(phase: Phase, parent: TraceContext, most: int) -> Iterator[Span]:
    for chunk in phase.chunks[:most]:
        places: Mapping[str, Value] = {
            "octavo.from_token": chunk.start,
            "octavo.to_token": chunk.end,
        }
        yield Span("chunk", _below(parent), chunk.planned_at, chunk.applied_at, places)


def _attributes(ended: Ended) -> dict[str, Value]:
    record = ended.record
    found: dict[str, Value | None] = {
        "gen_ai.operation.name": operation_of(ended.route),
        "gen_ai.provider.name": "octavo",
        "gen_ai.request.model": ended.model,
        "gen_ai.response.model": ended.model,
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": record.num_output_tokens,
        "http.request.method": ended.method,
        "http.route": ended.route,
        "http.response.status_code": ended.status,
        # vLLM's
        "gen_ai.request.id": record.request_id,
        "gen_ai.usage.prompt_tokens": record.num_prompt_tokens,
        "gen_ai.usage.completion_tokens": record.num_output_tokens,
        "gen_ai.latency.e2e": _until(record.began, record.ended_at),
        # ours
        "octavo.outcome": record.outcome,
        "octavo.stream": record.is_stream,
        "octavo.adapter": record.adapter,
    }
    if record.finish_reasons:
        found["gen_ai.response.finish_reasons"] = record.finish_reasons
    if record.outcome != "finished":
        found["error.type"] = record.outcome
    parameters = record.parameters or {}
    found |= {name: parameters.get(ours) for ours, name in _PARAMETERS.items()}
    found["gen_ai.request.n"] = found["gen_ai.usage.num_sequences"] = parameters.get("n")
    return {name: value for name, value in (found | _times(record)).items() if value is not None}


def _times(record: Record) -> dict[str, Value | None]:
    """Return the times that the engine has measured, under vLLM's names, and its counts."""
    stats = record.stats
    if stats is None:
        return {}
    planned, first, last = stats.first_planned_at, stats.first_token_at, stats.finished_at
    return {
        "gen_ai.latency.time_to_first_token": _until(record.began, first),
        "gen_ai.latency.time_in_queue": _until(record.began, planned),
        "gen_ai.latency.time_in_model_prefill": _until(planned, first),
        "gen_ai.latency.time_in_model_decode": _until(first, last),
        "gen_ai.latency.time_in_model_inference": _until(planned, last),
        "gen_ai.usage.cache_read.input_tokens": stats.num_cached_tokens,
        "octavo.preemptions": stats.num_preemptions,
        "octavo.engine_restarts": len(stats.restarts),
        "octavo.accepted_draft_tokens": stats.num_accepted_drafts,
    }


def _until(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else max(0.0, end - begin)
