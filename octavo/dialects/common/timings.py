"""The times of an answer, and how far its prompt is, as llama-server's answers have them."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import UNSET, Struct, UnsetType

from octavo.core.stats import RequestStats

_MILLISECONDS = 1000.0


class LlamaTimings(Struct, kw_only=True):
    """The times of a request, in milliseconds, and the speeds that follow from them."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float
    predicted_per_second: float
    draft_n: int | UnsetType = UNSET  # left out without drafts
    draft_n_accepted: int | UnsetType = UNSET


class PromptProgress(Struct, kw_only=True):
    """The part of a prompt that has been computed, or was found in the cache."""

    total: int
    cache: int
    processed: int  # cached ones included
    time_ms: float


def timings_of(
    stats: RequestStats | None, num_prompt: int, num_cached: int, num_generated: int, now: float
) -> LlamaTimings:
    """Return the times of an answer so far; without statistics all are 0."""
    num_computed = max(0, num_prompt - num_cached)
    prompt_ms = predicted_ms = 0.0
    if stats is not None:
        began = stats.first_planned_at or stats.added_at
        if stats.first_token_at is not None:
            prompt_ms = max(0.0, stats.first_token_at - began) * _MILLISECONDS
            ended = now if stats.finished_at is None else stats.finished_at
            predicted_ms = max(0.0, ended - stats.first_token_at) * _MILLISECONDS
    num_steps = max(0, num_generated - 1)  # the first token belongs to the prompt's step
    made = LlamaTimings(
        cache_n=num_cached,
        prompt_n=num_computed,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=_ratio(prompt_ms, num_computed),
        prompt_per_second=_ratio(num_computed * _MILLISECONDS, prompt_ms),
        predicted_n=num_generated,
        predicted_ms=predicted_ms,
        predicted_per_token_ms=_ratio(predicted_ms, num_steps),
        predicted_per_second=_ratio(num_steps * _MILLISECONDS, predicted_ms),
    )
    if stats is not None and stats.num_drafts:
        made.draft_n, made.draft_n_accepted = stats.num_drafts, stats.num_accepted_drafts
    return made


class ProgressReader:
    """The events about one prompt that have been sent: none is sent twice, and none goes back."""

    def __init__(self) -> None:
        self._last = -1

    def new(self, stats: RequestStats) -> Iterator[tuple[PromptProgress, LlamaTimings]]:
        """Yield how far the prompt was before its first chunk and behind each that is new."""
        if not stats.chunks:
            return
        began, total = stats.chunks[0].planned_at, stats.num_prompt_tokens
        cached = min(stats.num_cached_tokens, total)
        points = [(cached, began), *((each.end, each.applied_at) for each in stats.chunks)]
        for end, at in points:
            processed = min(end, total)
            if processed > self._last:
                self._last = processed
                time_ms = max(0.0, at - began) * _MILLISECONDS
                progress = PromptProgress(
                    total=total, cache=cached, processed=processed, time_ms=time_ms
                )
                yield progress, _of_prompt(processed - cached, cached, time_ms)


def _of_prompt(num_computed: int, num_cached: int, prompt_ms: float) -> LlamaTimings:
    """Return the times before anything is generated."""
    return LlamaTimings(
        cache_n=num_cached,
        prompt_n=num_computed,
        prompt_ms=prompt_ms,
        prompt_per_token_ms=_ratio(prompt_ms, num_computed),
        prompt_per_second=_ratio(num_computed * _MILLISECONDS, prompt_ms),
        predicted_n=0,
        predicted_ms=0.0,
        predicted_per_token_ms=0.0,
        predicted_per_second=0.0,
    )


def _ratio(value: float, count: float) -> float:
    """Return a quotient; 0 where there is nothing to divide by."""
    return value / count if count else 0.0
