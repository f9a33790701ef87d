"""The time of a step as a function of its work, learned from the steps that have ended.

    seconds = a + b * decoding tokens + c * positions that those read
            + d * prompt tokens + e * pairs (a prompt's token, a position that it reads)
            + f * prompt tokens of requests for vectors

The time of a step is the distance between its result and the one before, or since it was planned if
no step was in flight then. With two steps in flight that is not the time which the backend
computed, but it is what a reader of a stream waits, and it needs no clock beside the engine's.

The coefficients are those with the smallest squares of the relative errors, none of them negative.
Since errors are relative, a machine that stalls is not taken for a slow one: a time far above the
prediction counts little, and as four times the prediction at most. A time far below it would count
too much. Where a result is collected late, the next step, which ran meanwhile, seems short: such
times are left out, also behind a late result of a step without work. Any other counts as half the
prediction. But no step can be faster than its work, so a second one in a row counts as a quarter,
and halves the weight of all that came before, and so on: a slow first step is soon forgotten. The
first steps may differ much more, since one coefficient explains all the time of the very first.
Where several steps of a kind in a row take far longer than predicted, the machine has become
slower, and each halves the weight of those of its kind before: with relative errors, old short
times would outweigh new long ones.

Older steps count less. Steps with hardly any prompt and all others are summed apart, and each kind
fades as more of its own come: a thousand steps that only decode do not erase what is known of
prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import fsum
from operator import mul
from typing import NamedTuple

from octavo.core.stats import StepStats

_NUM_FACTORS = 6
_KEPT = 0.93  # of the sums of a kind, when another step of that kind comes
_KEPT_OF_OTHERS = 0.995  # … of the other kind
_NUM_SWEEPS = 8  # over the coefficients; the next time they go on from there
_NUM_TOGETHER = 4  # steps that are learned before the coefficients are improved
_LEAST_SHARE, _MOST_SHARE = 0.5, 4.0  # of the prediction, as which other times count
_NUM_FIRST, _LEAST_FIRST_SHARE = 16, 1 / 32  # of the first steps
_MOST_LATE = 2  # short times that are left out behind a long one: steps in flight beside it
_NUM_STALLS = 2  # long times of a kind in a row, after which the machine is taken for slower
_MOST_LOW = 8  # times below the least share in a row that are counted
# Where the steps leave several coefficients open, those of counts stay what they are and the others
# become small, by so much weight: one chunk does not show how far it depends on positions.
_TIES = 3e-3
_BY_COUNT = (0, 1, 3)

Factors = tuple[float, ...]


class PromptCost(NamedTuple):
    """The time of a chunk of a prompt: of each token, and of each pair of positions."""

    token_seconds: float
    pair_seconds: float

    def seconds(self, start: int, count: int) -> float:
        """Return the time that a chunk adds to a step."""
        pairs = count * start + count * (count + 1) / 2
        return count * self.token_seconds + pairs * self.pair_seconds

    def most_tokens(self, start: int, most: int, seconds: float) -> int:
        """Return how many tokens from `start` on, of `most`, take no longer than `seconds`."""
        least = 0
        while least < most:
            middle = (least + most + 1) // 2
            if self.seconds(start, middle) <= seconds:
                least = middle
            else:
                most = middle - 1
        return least


class _Sums:
    """The faded sums of one kind of steps, from which the coefficients follow."""

    __slots__ = ("num_high", "products", "totals")

    def __init__(self) -> None:
        self.num_high = 0  # the last steps in a row that took far longer than predicted
        self.products = [[0.0] * _NUM_FACTORS for _ in range(_NUM_FACTORS)]
        self.totals = [0.0] * _NUM_FACTORS

    def fade(self, kept: float) -> None:
        """Let the steps so far count less."""
        self.products = [[kept * each for each in row] for row in self.products]
        self.totals = [kept * each for each in self.totals]

    def add(self, scaled: Factors) -> None:
        """Add a step, whose factors are divided by its seconds."""
        for row, factor in zip(self.products, scaled, strict=True):
            if factor:
                row[:] = [each + factor * other for each, other in zip(row, scaled, strict=True)]
        self.totals = [each + other for each, other in zip(self.totals, scaled, strict=True)]


class StepTimes:
    """A model of the time of a step, which learns from each that has ended."""

    def __init__(self) -> None:
        self.coefficients = [0.0] * _NUM_FACTORS
        self.largest_prompt = 0  # the most prompt tokens of a step that was learned from
        self.num_decoding = 0  # steps with hardly any prompt that were learned from
        self._num_learned = 0
        self._num_low = 0  # the last steps in a row that were far below the prediction
        self._num_late = 0  # short times that the last long one may explain
        self._decoding, self._mixed = _Sums(), _Sums()

    def learn(self, ended: Iterable[tuple[StepStats, float]], least: int) -> None:
        """Add steps, with how long each took, to what is known.

        Up to `least` prompt tokens are hardly any.
        """
        num_new = 0
        for step, seconds in ended:
            if not step.num_tokens:  # nothing was computed
                if seconds > self.coefficients[0] / _LEAST_SHARE:
                    self._num_late = _MOST_LATE
                continue
            if seconds <= 0.0:  # the clock was set back
                continue
            self._add(step, seconds, is_decoding=step.num_prefill_tokens <= least)
            num_new += 1
            if num_new % _NUM_TOGETHER == 0:
                self._improve()
        if num_new % _NUM_TOGETHER:
            self._improve()

    def _add(self, step: StepStats, seconds: float, *, is_decoding: bool) -> None:
        factors = _factors_of(step)
        predicted = _dot(self.coefficients, factors)
        is_late = seconds > predicted / _LEAST_SHARE > 0.0
        if seconds < _LEAST_SHARE * predicted:
            if self._num_late:
                self._num_late -= 1
                return
            self._num_low = min(_MOST_LOW, self._num_low + 1)
            share = _LEAST_SHARE**self._num_low
            is_first = self._num_learned < _NUM_FIRST
            seconds = max(seconds, (_LEAST_FIRST_SHARE if is_first else share) * predicted)
            self._decoding.fade(share / _LEAST_SHARE)
            self._mixed.fade(share / _LEAST_SHARE)
        else:
            self._num_low = 0
            self._num_late = _MOST_LATE if is_late else 0
            seconds = min(seconds, _MOST_SHARE * predicted) if predicted else seconds
        self._num_learned += 1
        own, other = self._decoding, self._mixed
        if is_decoding:
            self.num_decoding += 1
        else:
            own, other = other, own
        own.num_high = own.num_high + 1 if is_late else 0
        own.fade(_KEPT if own.num_high <= _NUM_STALLS else _LEAST_SHARE)
        other.fade(_KEPT_OF_OTHERS)
        own.add(tuple([factor / seconds for factor in factors]))
        self.largest_prompt = max(self.largest_prompt, step.num_prefill_tokens)

    def _improve(self) -> None:
        """Change the coefficients, one after the other, towards the smallest squares."""
        pairs = zip(self._decoding.products, self._mixed.products, strict=True)
        products = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
        both = zip(self._decoding.totals, self._mixed.totals, strict=True)
        totals = [a + b for a, b in both]
        values = self.coefficients
        before = tuple(values)
        for _ in range(_NUM_SWEEPS):
            for index, (row, total) in enumerate(zip(products, totals, strict=True)):
                own = row[index]
                if own > 0.0:
                    rest = total - _dot(row, values) + own * values[index]
                    tie = _TIES * own
                    kept = tie * before[index] if index in _BY_COUNT else 0.0
                    values[index] = max(0.0, (rest + kept) / (own + tie))

    def decoding_seconds(self, num_tokens: int, num_read: int) -> float:
        """Predict the time of a step that only decodes."""
        constant, token, read = self.coefficients[:3]
        return constant + token * num_tokens + read * num_read

    def prompt_cost(self, *, is_pooled: bool) -> PromptCost:
        """Return what tokens of a prompt add to a step."""
        token, pair, pooled = self.coefficients[3:]
        return PromptCost(token + pooled if is_pooled else token, pair)


def _factors_of(step: StepStats) -> Factors:
    """Return what each coefficient is multiplied by."""
    return (
        1.0,
        step.num_tokens - step.num_prefill_tokens,
        step.num_read,
        step.num_prefill_tokens,
        step.num_prefill_pairs,
        step.num_pooled_tokens,
    )


def _dot(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the sum of the products, rounded once: the same under every version of Python."""
    return fsum(map(mul, first, second))
