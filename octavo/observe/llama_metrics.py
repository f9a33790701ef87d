"""The metrics of llama-server under its names, for dashboards and scripts that read those."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from octavo.observe.exposition import Counter, Gauge, Labels, Maximum, Metric, Named

NAMES = "llamacpp"  # the setting, and the prefix of the names


class Reading(NamedTuple):
    """The numbers of a server that llama-server counts too."""

    prompt_tokens: float  # of prompts that have been computed, without cached ones
    cached_tokens: float
    prompt_seconds: float
    generated_tokens: float
    generation_seconds: float
    num_steps: float
    longest: float  # tokens of one sequence
    num_draft_tokens: float
    num_accepted_tokens: float
    num_drafts: float  # steps of sequences that verified some
    num_running: float
    num_waiting: float
    running_per_step: float


_TOTALS = {
    "prompt_tokens": ("prompt_tokens", "Prompt tokens computed."),
    "prompt_tokens_cached": ("cached_tokens", "Prompt tokens found in the prefix cache."),
    "prompt_seconds": ("prompt_seconds", "Time spent on prompts."),
    "tokens_predicted": ("generated_tokens", "Tokens generated."),
    "tokens_predicted_seconds": ("generation_seconds", "Time spent on answers."),
    "n_decode": ("num_steps", "Steps of the engine."),
    "spec_decode_num_draft_tokens": ("num_draft_tokens", "Drafts verified."),
    "spec_decode_num_accepted_tokens": ("num_accepted_tokens", "Drafts accepted."),
    "spec_decode_num_drafts": ("num_drafts", "Steps of sequences that verified drafts."),
}
_VALUES = {
    "requests_processing": ("num_running", "Sequences that run."),
    "requests_deferred": ("num_waiting", "Requests that wait."),
    "n_busy_slots_per_decode": ("running_per_step", "Sequences of a step, lately."),
}


class LlamaMetrics:
    """The metrics of one server; its two rates are those since the last reading."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read
        self._last = Reading(*[0.0] * len(Reading._fields))
        self._counters = {name: Counter(name, meaning) for name, (_, meaning) in _TOTALS.items()}

    def named(self, labels: Labels) -> list[Named]:
        """Return the metrics as they are now; the next rates begin here."""
        now, last = self._read(), self._last
        self._last = now
        return [(f"{NAMES}:{metric.name}", metric, labels) for metric in self._made(now, last)]

    def _made(self, now: Reading, last: Reading) -> Iterator[Metric]:
        for name, counter in self._counters.items():
            counter.raise_to(getattr(now, _TOTALS[name][0]))
            yield counter
        yield Maximum("n_tokens_max", "Tokens of the longest sequence.", lambda: now.longest)
        for name, (field, meaning) in _VALUES.items():
            yield _gauge(name, meaning, getattr(now, field))
        rate = _rate(
            now.prompt_tokens - last.prompt_tokens, now.prompt_seconds - last.prompt_seconds
        )
        yield _gauge("prompt_tokens_seconds", "Prompt tokens a second, since last asked.", rate)
        rate = _rate(
            now.generated_tokens - last.generated_tokens,
            now.generation_seconds - last.generation_seconds,
        )
        yield _gauge("predicted_tokens_seconds", "Tokens a second, since last asked.", rate)


def _gauge(name: str, meaning: str, value: float) -> Gauge:
    return Gauge(name, meaning, lambda: value)


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0
