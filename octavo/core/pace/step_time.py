"""The time of a step as a function of its work, learned from the steps that have ended.

    seconds = a + b * decoding tokens + c * positions that those read
            + d * prompt tokens + e * pairs (a prompt's token, a position that it reads)
            + f * prompt tokens of requests for vectors

The time of a step is the distance between its result and the one before, or since it was planned if
no step was in flight then. With two steps in flight that is not the time which the backend
computed, but it is what a reader of a stream waits, and it needs no clock beside the engine's.

The coefficients are those with the smallest squares of the relative errors, none of them negative.
With relative errors, a time that is too long counts little, and one that is too short counts much.
Where a result is collected late, the next steps, which ran meanwhile, seem short: such times are
left out, as long as the late one explains them; all of the first time may be lateness, since
nothing is known yet. Any other time far below the prediction waits for a second one in a row: then
both count, since no step can be faster than its work, and a slow first step is soon forgotten. A
second one that is far shorter than the first may have run beside it, and is left out too. A time
far above the prediction is a stall, and does not count. Where several of a kind in a row take far
longer than predicted, the machine has become slower, and what is known of that kind fades by as
much as its short times would outweigh the new long ones.

Older steps count less. Steps with hardly any prompt and all others are summed apart, and each kind
fades as more of its own come: a thousand steps that only decode do not erase what is known of
prompts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from math import fsum, inf
from operator import mul
from typing import NamedTuple

from octavo.core.stats import StepStats

_NUM_FACTORS = 6
_KEPT = 0.95  # of the sums of a kind, when another step of that kind comes
_KEPT_OF_OTHERS = 0.995  # … of the other kind
# Small steps predict large ones poorly, so a step may be at most so many times as large as the
# largest of the last few with prompts.
GROWTH = 2
_NUM_RECENT = 4
_MOST_SOLUTIONS = 12  # that are tried for one improvement
_LEAST_GAIN = 1e-9  # of a factor that is taken in, as a part of its total
_VANISHED = 1e-200  # the sum of a factor that no step has had for so long that it says nothing
_NUM_TOGETHER = 4  # steps that are learned before the coefficients are improved
_LEAST_SHARE = 0.5  # of the prediction: a shorter time needs a second one to be believed
_STALL_SHARE = 0.25  # of a time: a smaller prediction shows a stall, unless times stay so long
_NUM_FIRST = 16  # steps, after each of which the coefficients are improved
_MOST_LATE = 3  # short times that are left out behind a long one: steps in flight beside it
_LATE_SHARE = 0.7  # of what such a time lacks, by which the long one must have been too long
_NUM_STALLS = 2  # long times of a kind in a row, behind which the machine is taken for slower
# Where the steps leave several coefficients open, those of counts stay what they are and the others
# become small, by so much weight: one chunk does not show how far it depends on positions.
_TIES = (3e-4, 3e-4, 3e-3, 3e-4, 1e-3, 3e-4)
_BY_COUNT = (0, 1, 3)
# The weight by which steps with prompts let the time of positions that decoding tokens read become
# small. Such positions and those of the prompts grow together from step to step, so a few noisy
# times of such steps do not show which of the two took longer. A decoding part that seems too long
# makes room for prompts that delay the streams; one that seems too short delays a prompt a little.
_READ_TIE = 0.1
_READ, _PROMPT = 2, 3  # the places of these factors

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

    __slots__ = ("num_high", "products", "read_beside_prompts", "totals")

    def __init__(self) -> None:
        self.num_high = 0  # the last steps in a row that took far longer than predicted
        self.products = [[0.0] * _NUM_FACTORS for _ in range(_NUM_FACTORS)]
        self.totals = [0.0] * _NUM_FACTORS
        self.read_beside_prompts = 0.0  # the part of the squares of reads of steps with prompts

    def fade(self, kept: float) -> None:
        """Let the steps so far count less."""
        self.products = [[kept * each for each in row] for row in self.products]
        self.totals = [kept * each for each in self.totals]
        self.read_beside_prompts *= kept

    def add(self, scaled: Factors) -> None:
        """Add a step, whose factors are divided by its seconds."""
        for row, factor in zip(self.products, scaled, strict=True):
            if factor:
                row[:] = [each + factor * other for each, other in zip(row, scaled, strict=True)]
        self.totals = [each + other for each, other in zip(self.totals, scaled, strict=True)]
        if scaled[_PROMPT]:
            self.read_beside_prompts += scaled[_READ] ** 2


class StepTimes:
    """A model of the time of a step, which learns from each that has ended."""

    def __init__(self) -> None:
        self.coefficients = [0.0] * _NUM_FACTORS
        self._decoding, self._mixed = _Sums(), _Sums()
        self._prompts: deque[int] = deque(maxlen=_NUM_RECENT)  # tokens of the last steps with any
        self._largest_read = 0  # the most positions that decoding tokens of a step have read
        self.num_decoding = 0  # steps with hardly any prompt that were learned from
        self._num_learned = 0
        self._num_low = 0  # the last steps in a row that were far below the prediction
        self._held: tuple[StepStats, float, bool]  # the first of them
        self._num_late = 0  # short times that the last long one may explain
        self._late_seconds = 0.0  # by which it was longer than the prediction

    def learn(self, ended: Iterable[tuple[StepStats, float]], least: int) -> None:
        """Add steps, with how long each took, to what is known.

        Up to `least` prompt tokens are hardly any.
        """
        num_new = 0
        for step, seconds in ended:
            if not step.num_tokens:  # nothing was computed
                self._num_late, self._late_seconds = _MOST_LATE, seconds - self.coefficients[0]
                continue
            if seconds <= 0.0:  # the clock was set back
                continue
            self._add(step, seconds, is_decoding=step.num_prefill_tokens <= least)
            num_new += 1
            if self._num_learned < _NUM_FIRST or num_new % _NUM_TOGETHER == 0:
                self._improve()
        if num_new % _NUM_TOGETHER:
            self._improve()

    def _add(self, step: StepStats, seconds: float, *, is_decoding: bool) -> None:
        predicted = _dot(self.coefficients, _factors_of(step))
        own = self._decoding if is_decoding else self._mixed
        if seconds < _LEAST_SHARE * predicted:
            own.num_high = 0
            if self._is_behind_late(predicted - seconds):
                return
            if self._is_beside_held(step, seconds):
                return
            self._num_low += 1
            if self._num_low == 1:
                self._held = step, seconds, is_decoding
                return
            if self._num_low == 2:
                self._take(*self._held, kept=_KEPT)
            self._take(step, seconds, is_decoding, kept=_KEPT)
            return
        self._num_low = 0
        self._num_late = _MOST_LATE
        self._late_seconds = seconds - predicted if predicted else inf
        share = predicted / seconds
        own.num_high = own.num_high + 1 if 0.0 < share < _LEAST_SHARE else 0
        if own.num_high > _NUM_STALLS:
            self._take(step, seconds, is_decoding, kept=share * share)
        elif not 0.0 < share < _STALL_SHARE:
            self._take(step, seconds, is_decoding, kept=_KEPT)

    def _take(self, step: StepStats, seconds: float, is_decoding: bool, kept: float) -> None:
        """Add a step; so much of the weight of those of its kind before it is kept."""
        own, other = self._decoding, self._mixed
        if not is_decoding:
            own, other = other, own
        own.fade(kept)
        other.fade(_KEPT_OF_OTHERS)
        own.add(tuple([factor / seconds for factor in _factors_of(step)]))
        self._num_learned += 1
        self.num_decoding += is_decoding
        self._largest_read = max(self._largest_read, step.num_read)
        if step.num_prefill_tokens:
            self._prompts.append(step.num_prefill_tokens)

    def _is_behind_late(self, lacking: float) -> bool:
        """Return whether a time is too short because a result before it was collected late."""
        if not self._num_late or self._late_seconds < _LATE_SHARE * lacking:
            return False
        self._num_late -= 1
        self._late_seconds -= lacking
        return True

    def _is_beside_held(self, step: StepStats, seconds: float) -> bool:
        """Return whether a time is too short because that of the held step was collected late.

        What was predicted is wrong, so the held time is all that this one can be compared with.
        """
        if self._num_low != 1:
            return False
        held, held_seconds, _ = self._held
        return step.step - held.step <= _MOST_LATE and seconds < _LEAST_SHARE * held_seconds

    def _improve(self) -> None:
        """Change the coefficients to those with the smallest squares."""
        pairs = zip(self._decoding.products, self._mixed.products, strict=True)
        products = [[a + b for a, b in zip(*pair, strict=True)] for pair in pairs]
        both = zip(self._decoding.totals, self._mixed.totals, strict=True)
        totals = [a + b for a, b in both]
        for index, row in enumerate(products):
            tie = _TIES[index] * row[index]
            row[index] += tie
            if index in _BY_COUNT:
                totals[index] += tie * self.coefficients[index]
        beside = self._decoding.read_beside_prompts + self._mixed.read_beside_prompts
        products[_READ][_READ] += _READ_TIE * beside
        known = [index for index, row in enumerate(products) if row[index] > _VANISHED]
        self.coefficients = _least_squares(products, totals, self.coefficients, known)

    @property
    def largest_prompt(self) -> int:
        """The most prompt tokens of the last steps that were learned from."""
        return max(self._prompts, default=0)

    def decoding_seconds(self, num_tokens: int, num_read: int) -> float:
        """Predict the time of a step that only decodes.

        Positions beyond the most that any step has read add nothing: few positions and noisy times
        say little of what a position takes, and a goal that is a multiple of too long a time would
        let prompts delay the streams.
        """
        constant, token = self.coefficients[:2]
        return constant + token * num_tokens + self.reading_seconds(num_read)

    def reading_seconds(self, num_read: int) -> float:
        """Predict by how much positions that are read lengthen a step that only decodes."""
        return self.coefficients[2] * min(num_read, self._largest_read)

    def prompt_cost(self, *, is_pooled: bool) -> PromptCost:
        """Return what tokens of a prompt add to a step."""
        token, pair, pooled = self.coefficients[3:]
        return PromptCost(token + pooled if is_pooled else token, pair)


def _least_squares(
    products: list[list[float]], totals: list[float], near: list[float], known: list[int]
) -> list[float]:
    """Return the solution without negative values; those that are not known stay as in `near`.

    The factors whose values are positive are found by taking in the one that lowers the squares
    fastest, and leaving out those whose values would become negative. They are likely to be those
    whose values have been positive.
    """
    values = near
    used = [index for index in known if near[index] > 0.0]
    for _ in range(_MOST_SOLUTIONS):
        found = _solution(products, totals, used)
        if min(found, default=0.0) < 0.0:
            used = [index for index, value in zip(used, found, strict=True) if value > 0.0]
            continue
        values = [0.0 if index in known else value for index, value in enumerate(near)]
        for index, value in zip(used, found, strict=True):
            values[index] = value
        gains = [
            (1.0 - _dot(products[index], values) / totals[index], index)
            for index in known
            if index not in used
        ]
        gain, best = max(gains, default=(0.0, 0))
        if gain <= _LEAST_GAIN:
            break
        used = sorted((*used, best))
    return values


def _solution(products: list[list[float]], totals: list[float], used: list[int]) -> list[float]:
    """Return the solution of the equations of some factors; `products` are symmetric."""
    rows = [[*(products[i][j] for j in used), totals[i]] for i in used]
    for place, row in enumerate(rows):
        for other in rows[place + 1 :]:
            share = other[place] / row[place]
            for column in range(place, len(row)):
                other[column] -= share * row[column]
    found = [0.0] * len(used)
    for place in range(len(used) - 1, -1, -1):
        row = rows[place]
        rest = row[-1]
        for column in range(place + 1, len(used)):
            rest -= row[column] * found[column]
        found[place] = rest / row[place]
    return found


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
