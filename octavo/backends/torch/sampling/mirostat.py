"""Mirostat: the tokens whose surprise is bounded, and the bound that follows what is drawn.

The surprise of a token is -log2 of its probability. Its mean is held near tau, by a bound mu that
each token moves: mu - eta · (surprise - tau), where the surprise is that of the drawn token among
those that were left. So mu depends on the probabilities of all tokens before.

Version 2 leaves the tokens whose surprise is at most mu, and one at least. Version 1 takes the
ranks of tokens for a power law. It estimates the exponent s from the likeliest 100, whose
probabilities are p1, p2, …

    s = Σ t·b / Σ t²        t = log((i + 1) / i),  b = log(p_i / p_(i+1))
    k = (e · 2^mu / (1 - n^-e))^(1/s)    e = s - 1,  n tokens in the vocabulary

and leaves the k likeliest; ties go by token id.
"""

from __future__ import annotations

import math

import numpy as np

from octavo.backends.base import Doubles
from octavo.backends.torch.sampling.filters import Integers

_RANKS = 100  # that the exponent is estimated from
_LEAST = 1e-12  # of the exponent: all of them may be equally likely


def expected(scores: Doubles, mu: float) -> Integers:
    """Return the places of the tokens whose surprise is at most mu."""
    behind = scores.max() - scores
    kept = np.flatnonzero(behind <= mu * math.log(2.0) - math.log(np.exp(-behind).sum()))
    return kept if len(kept) else np.array([behind.argmin()])


def likeliest(scores: Doubles, mu: float, vocabulary: int) -> Integers:
    """Return the places of the likeliest tokens, so many as version 1 estimates."""
    order = np.argsort(-scores, kind="stable")
    if len(order) < 2:
        return order
    ranked = scores[order[:_RANKS]].tolist()
    above = below = 0.0
    for rank in range(len(ranked) - 1):
        step = math.log((rank + 2) / (rank + 1))
        above += step * (ranked[rank] - ranked[rank + 1])
        below += step * step
    exponent = max(above / below, _LEAST)
    count = _log_count(exponent, mu, vocabulary)
    if count >= math.log(len(order)):
        return order
    return order[: int(math.exp(count)) if count > 0.0 else 1]


def _log_count(exponent: float, mu: float, vocabulary: int) -> float:
    """Return the logarithm of how many tokens are left."""
    excess, spread = exponent - 1.0, math.log(vocabulary)
    # With no excess the quotient is the limit that it has there.
    quotient = -excess / math.expm1(-excess * spread) if excess else 1.0 / spread
    return (mu * math.log(2.0) + math.log(quotient)) / exponent


def surprise(scores: Doubles, place: int) -> float:
    """Return the surprise of a token among those that are left, in bits."""
    behind = scores.max() - scores
    return (float(behind[place]) + math.log(np.exp(-behind).sum())) / math.log(2.0)
