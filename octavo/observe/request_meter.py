"""Counts the tokens of one prompt's continuations while they come, for the server's metrics."""

from __future__ import annotations

from octavo.observe.metrics import Metrics


class RequestMeter:
    """Implements `octavo.api.continuation.Meter`. As in vLLM, each continuation counts alone."""

    __slots__ = ("_metrics", "_most_tokens", "_num_open", "_observe")

    def __init__(self, metrics: Metrics, num_continuations: int) -> None:
        self._metrics = metrics
        self._observe = metrics.between.observe
        self._num_open = num_continuations
        self._most_tokens = 0  # of the longest continuation that has ended

    def add(self, num_tokens: int, seconds: float | None) -> None:
        self._metrics.num_generated += num_tokens
        if seconds is not None:
            self._observe(seconds)

    def end(self, num_tokens: int, seconds: float) -> None:
        metrics = self._metrics
        metrics.output_length.observe(num_tokens)
        if num_tokens > 1:
            metrics.per_token.observe(seconds / (num_tokens - 1))
        self._most_tokens = max(self._most_tokens, num_tokens)
        self._num_open -= 1
        if not self._num_open:
            metrics.longest_output.observe(self._most_tokens)
