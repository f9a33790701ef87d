"""The meaning of a chain of samplers: each works on the tokens that the ones before have left.

The probability of a token is its share of exp(logit / temperature) among those tokens; before the
stage "temperature" it is 1. Ties go by token id, where not all of them are kept.

    top_k        the k likeliest, with all that tie with the last of them
    min_p        those with at least `value` times the probability of the likeliest
    top_p        the likeliest, each with less than `value` of probability before it
    typical_p    the same in the order of | -log p - entropy |
    top_n_sigma  those with a logit of at least the best one's, less `value` standard deviations
    xtc          if a coin falls so (its noise is below `value`): of those with a probability of
                 `threshold` or more, only the least likely, and all others
    temperature  divide logits; with a range r, by t - r + 2r · (entropy / log n)^exponent, where
                 n tokens are left, and t - r is 0 at least
    mirostat     those whose surprise is at most mu, or as many as mirostat.py estimates

A stage that would leave fewer than `min_keep` leaves the first so many of its order; XTC then
leaves all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from octavo.backends.base import Doubles, Floats
from octavo.backends.step import Stage
from octavo.backends.torch.sampling import mirostat, noise
from octavo.backends.torch.sampling.filters import Integers, nearest

COIN = 1 << 32  # the token whose noise is the coin of XTC; no vocabulary has so many
GREEDY_BELOW = 1e-5  # a lower temperature, where it follows the entropy, takes the likeliest token
LEAST_TEMPERATURE = 0.01  # others are raised to this
_COIN = noise.spread(np.array([COIN]))


@dataclass(slots=True)
class Left:
    """The tokens that are left, with ascending ids."""

    ids: Integers
    logits: Doubles
    coin: float
    mu: float = 0.0  # of mirostat
    vocabulary: int = 0  # the tokens that there were
    temperature: float = 1.0

    @property
    def scores(self) -> Doubles:
        return self.logits / self.temperature

    def shares(self) -> tuple[Doubles, Doubles]:
        """Return the distances of all scores below the best, and exp(-distance)."""
        behind = self.scores.max() - self.scores
        return behind, np.exp(-behind)

    def keep(self, kept: Integers) -> None:
        """Leave only the tokens at these places."""
        kept = np.sort(kept)
        self.ids, self.logits = self.ids[kept], self.logits[kept]

    def keep_nearest(self, distances: Doubles, kept: Integers, min_keep: int) -> None:
        """Leave the tokens at these places; if they are too few, those with least distances."""
        if len(kept) < min_keep:
            kept = np.argsort(distances, kind="stable")[:min_keep]
        self.keep(kept)


def run_chain(
    row: Floats, chain: tuple[Stage, ...], keys: tuple[int, int], mu: float = 0.0
) -> Left:
    """Return what a chain leaves of a row, in which -infinity marks tokens never to draw."""
    ids = np.flatnonzero(row > -np.inf)
    coin = float(noise.uniform(noise.bits([keys], _COIN))[0, 0])
    left = Left(ids, row[ids].astype(np.float64), coin, mu, len(row))
    for stage in chain:
        _STAGES[stage.name](left, stage)
    return left


def _top_k(left: Left, stage: Stage) -> None:
    surplus = len(left.ids) - int(stage.value)
    if surplus > 0:
        left.keep(np.flatnonzero(left.logits >= np.partition(left.logits, surplus)[surplus]))


def _min_p(left: Left, stage: Stage) -> None:
    scores = left.scores
    kept = np.flatnonzero(scores >= scores.max() + math.log(stage.value))
    left.keep_nearest(-scores, kept, stage.min_keep)


def _top_p(left: Left, stage: Stage) -> None:
    behind, shares = left.shares()
    left.keep_nearest(behind, nearest(behind, shares, stage.value), stage.min_keep)


def _typical_p(left: Left, stage: Stage) -> None:
    behind, shares = left.shares()
    # -log p - entropy is the distance below the best less its mean.
    distances = np.abs(behind - (shares * behind).sum() / shares.sum())
    left.keep_nearest(distances, nearest(distances, shares, stage.value), stage.min_keep)


def _top_n_sigma(left: Left, stage: Stage) -> None:
    edge = left.logits.max() - stage.value * left.logits.std()
    left.keep(np.flatnonzero(left.logits >= edge))


def _xtc(left: Left, stage: Stage) -> None:
    if left.coin >= stage.value:
        return
    _, shares = left.shares()
    is_likely = shares >= stage.threshold * shares.sum()
    likely = np.flatnonzero(is_likely)
    if len(likely) < 2 or len(shares) - len(likely) + 1 < stage.min_keep:
        return
    least = likely[::-1][left.logits[likely][::-1].argmin()]  # of equal ones the last
    is_likely[least] = False
    left.keep(np.flatnonzero(~is_likely))


def _mirostat(left: Left, stage: Stage) -> None:
    if stage.value == 1:
        left.keep(mirostat.likeliest(left.scores, left.mu, left.vocabulary))
    else:
        left.keep(mirostat.expected(left.scores, left.mu))


def _temperature(left: Left, stage: Stage) -> None:
    temperature = stage.value
    if stage.range > 0.0:
        temperature = _by_entropy(left, stage)
    if temperature < GREEDY_BELOW:
        left.keep(np.array([left.logits.argmax()]))
    else:
        left.temperature = max(temperature, LEAST_TEMPERATURE)


def _by_entropy(left: Left, stage: Stage) -> float:
    """Return the temperature that follows the entropy; one token alone has none."""
    if len(left.ids) < 2:
        return stage.value
    low, high = max(0.0, stage.value - stage.range), stage.value + stage.range
    behind, shares = left.shares()
    total = float(shares.sum())
    entropy = math.log(total) + float((shares * behind).sum()) / total
    share = max(0.0, entropy / math.log(len(shares)))
    return low + (high - low) * math.pow(share, stage.exponent)


_STAGES: Mapping[str, Callable[[Left, Stage], None]] = {
    "top_k": _top_k,
    "min_p": _min_p,
    "top_p": _top_p,
    "typical_p": _typical_p,
    "top_n_sigma": _top_n_sigma,
    "xtc": _xtc,
    "temperature": _temperature,
    "mirostat": _mirostat,
}
