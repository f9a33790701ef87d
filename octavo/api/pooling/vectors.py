"""The arithmetic between a model's vectors and what users get: lengths, classes, similarities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul

SOFTMAX, SIGMOID = "softmax", "sigmoid"  # any other activation leaves logits as they are


def of_length_one(values: Sequence[float]) -> list[float]:
    """Scale a vector to length one; a zero vector stays as it is."""
    length = math.hypot(*values)
    return [value / length for value in values] if length else list(values)


def product(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the product of two vectors, a similarity that depends on their lengths."""
    return math.fsum(map(mul, first, second))


def cosine(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the cosine of the angle between two vectors; 0 if one of them is zero."""
    lengths = math.hypot(*first) * math.hypot(*second)
    return max(-1.0, min(1.0, product(first, second) / lengths)) if lengths else 0.0


def activated(logits: Sequence[float], activation: str) -> list[float]:
    """Return logits as probabilities: of one class among all, or of each class on its own."""
    if activation == SOFTMAX:
        highest = max(logits)
        powers = [math.exp(logit - highest) for logit in logits]
        total = math.fsum(powers)
        return [power / total for power in powers]
    if activation == SIGMOID:
        return [_sigmoid(logit) for logit in logits]
    return list(logits)


def _sigmoid(logit: float) -> float:
    if logit >= 0:
        return 1 / (1 + math.exp(-logit))
    power = math.exp(logit)
    return power / (1 + power)
