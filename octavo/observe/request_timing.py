"""The times of one answer in milliseconds, under vLLM's names, for the answer itself."""

from __future__ import annotations

from msgspec import Struct

from octavo.observe.explain import Record

_MILLISECONDS = 1000.0


class RequestTiming(Struct, kw_only=True, omit_defaults=True):
    """The times of a request with one answer; what is not known is left out."""

    time_to_first_token_ms: float | None = None  # since its first step was planned
    generation_time_ms: float | None = None  # from the first token to the last
    queue_time_ms: float | None = None  # from the prompt's tokens to the first step
    mean_itl_ms: float | None = None  # between two tokens
    tokens_per_second: float | None = None  # from the first step to the last token


def timing_of(record: Record, num_tokens: int) -> RequestTiming | None:
    """Return the times of a request that has ended, None if the engine has reported none."""
    stats = record.stats
    if stats is None:
        return None
    planned, first, last = stats.first_planned_at, stats.first_token_at, stats.finished_at
    timing = RequestTiming()
    if planned is not None:
        began = stats.added_at if record.prepared_at is None else record.prepared_at
        timing.queue_time_ms = _ms(planned - began)
        if first is not None:
            timing.time_to_first_token_ms = _ms(first - planned)
        if last is not None and last > planned:
            timing.tokens_per_second = round(num_tokens / (last - planned), 3)
    if first is not None and last is not None:
        timing.generation_time_ms = _ms(last - first)
        if num_tokens > 1:
            timing.mean_itl_ms = _ms((last - first) / (num_tokens - 1))
    return timing


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * _MILLISECONDS, 3)
