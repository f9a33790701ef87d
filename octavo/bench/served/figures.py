"""The figures of a measurement: rates, and how long tokens took, under vLLM's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from octavo.bench.served.answer import Answer
from octavo.core.config import ConfigError

# Each time by its name: its title, and what it is of an answer.
TIMES = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}


def figures(
    answers: Sequence[Answer],
    seconds: float,
    percentiles: Sequence[float],
    goals: Mapping[str, float],  # milliseconds, by the name of a time
) -> dict[str, Any]:
    """Return the figures of all answers that came within these seconds."""
    complete = [each for each in answers if not each.error]
    num_prompt = sum(each.num_prompt_tokens or 0 for each in complete)
    num_tokens = sum(each.tokens for each in complete)
    found: dict[str, Any] = {
        "duration": seconds,
        "completed": len(complete),
        "failed": len(answers) - len(complete),
        "total_input_tokens": num_prompt,
        "total_output_tokens": num_tokens,
        "request_throughput": len(complete) / seconds,
        "request_goodput": num_good(complete, goals) / seconds if goals else None,
        "output_throughput": num_tokens / seconds,
        "total_token_throughput": (num_prompt + num_tokens) / seconds,
        "max_output_tokens_per_s": _most_in_a_second(complete),
        "max_concurrent_requests": _most_at_once(complete),
    }
    for name in TIMES:
        found |= _spread(name, milliseconds(name, complete), percentiles)
    return found


def milliseconds(name: str, answers: Iterable[Answer]) -> list[float]:
    """Return all values of a time; answers that have none are left out."""
    match name:
        case "ttft":
            values = [each.first_seconds for each in answers]
        case "tpot":
            values = [each.token_seconds for each in answers if each.tokens > 1]
        case "itl":
            values = [gap for each in answers for gap in each.gaps]
        case _:
            values = [each.seconds for each in answers]
    return [1e3 * each for each in values]


def _spread(name: str, values: Sequence[float], percentiles: Sequence[float]) -> dict[str, Any]:
    if not values:
        return {}
    found = {
        f"mean_{name}_ms": float(np.mean(values)),
        f"median_{name}_ms": float(np.median(values)),
        f"std_{name}_ms": float(np.std(values)),
    }
    for each in percentiles:
        found[f"p{each:g}_{name}_ms"] = float(np.percentile(values, each))
    return found


def num_good(answers: Iterable[Answer], goals: Mapping[str, float]) -> int:
    """Return how many complete answers have met every goal."""
    return sum(
        all(max(milliseconds(name, [each]), default=0.0) <= most for name, most in goals.items())
        for each in answers
        if not each.error
    )


def _most_in_a_second(answers: Sequence[Answer]) -> int:
    """Return the most parts with tokens that came in one second, counted from the first request."""
    if not answers:
        return 0
    begin = min(each.began for each in answers)
    times = (at for each in answers for at in accumulate(each.gaps, initial=each.first))
    return max(Counter(int(at - begin) for at in times).values())


def _most_at_once(answers: Iterable[Answer]) -> int:
    """Return how many requests were open at the same time, at most."""
    changes = [(each.began, 1) for each in answers] + [(each.ended, -1) for each in answers]
    most = now = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def read_goals(words: Iterable[str]) -> dict[str, float]:
    """Return the goals of words such as `ttft:200`, in milliseconds."""
    goals: dict[str, float] = {}
    for word in words:
        name, _, value = word.partition(":")
        try:
            goals[name] = float(value)
        except ValueError:
            goals[name] = -1.0
        if name not in TIMES or name == "itl" or not goals[name] > 0:
            raise ConfigError(
                f"--goodput {word[:80]!r}: write ttft, tpot or e2el with milliseconds, as ttft:200"
            )
    return goals
