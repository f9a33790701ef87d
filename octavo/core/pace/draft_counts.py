"""The number of drafts that each sequence gets in a step: as many as gain more than they cost.

A step gives a token to each sequence that decodes, and takes so many seconds. A draft adds a token
with the chance that it is right, and makes the step wider. What steps of each width take is
measured (comparison.py). The likeliest drafts are sent, as many as raise the tokens per second
most. Where steps are bound by reading weights a wider one costs little, and where they are bound by
arithmetic it costs nearly as much more as it is wider; then no drafts may be left.
"""

from __future__ import annotations

from collections.abc import Sequence as Series

from octavo.core.config import CoreConfig
from octavo.core.pace.comparison import LEAST_GAIN, Comparison
from octavo.core.pace.width_times import Seconds
from octavo.core.sequence import Sequence

# Of steps with more rows than this, only some widths are used, so that each is measured often.
_FEW_ROWS = 8


class DraftCounts:
    """The rule for the drafts of a step."""

    def __init__(self, config: CoreConfig, comparison: Comparison) -> None:
        self._most_tokens = config.max_num_batched_tokens
        self._most_drafts = config.max_step_drafts or config.max_num_batched_tokens
        self._comparison = comparison
        self._has_ahead = config.max_ahead > 0  # what it gains, is known to the rule for that

    def pay(self, offers: Series[Series[float]], running: Series[Sequence], step: int) -> bool:
        """Return whether drafts with these chances, by sequence, would be sent in a step."""
        if not self._comparison.may_have_drafts(step):
            return False
        num_rows = sum([not each.catching_up for each in running])
        costs = self._comparison.costs(num_rows, sum([each.num_planned for each in running]))
        most = self._comparison.times.most_rows(num_rows) - num_rows
        room = min(self._most_tokens - len(running), self._most_drafts, most)
        return any(_best_counts(offers, num_rows, costs, max(0, room))[0])

    def limit(self, running: Series[Sequence], step: int, *, could_start: bool) -> None:
        """Limit the drafts of a step: they only gain time, and others may need its tokens.

        They share what is left after one token for each running sequence: a quarter of it while
        any catches up, or waits and could have a slot.
        """
        drafting = [each for each in running if each.drafts]
        if not drafting:
            return
        room = max(0, self._most_tokens - len(running))
        num_rows = sum([not each.catching_up for each in running])
        if could_start or num_rows < len(running):
            room //= 4
        room = min(room, self._most_drafts)
        costs = self._costs(drafting, num_rows)
        comparison = self._comparison
        if costs is not None:
            may_have = comparison.may_have_drafts(step)
            room = min(room, comparison.times.most_rows(num_rows) - num_rows) if may_have else 0
        chances = [
            (each.chances or (1.0,) * len(each.drafts))[: len(each.drafts)] for each in drafting
        ]
        counts, gain = _best_counts(chances, num_rows, costs, room)
        if gain and not self._has_ahead:
            comparison.has_chosen(num_rows, gain)
        for each, count in zip(drafting, counts, strict=True):
            each.keep_drafts(count)

    def _costs(self, drafting: Series[Sequence], num_rows: int) -> tuple[float, Seconds] | None:
        """Return the seconds of a step without drafts, and of wider ones; None: all are sent."""
        if not any(each.chances for each in drafting):
            return None
        return self._comparison.costs(num_rows, sum([each.num_planned for each in drafting]))


def _best_counts(
    chances: Series[Series[float]],
    num_rows: int,
    costs: tuple[float, Seconds] | None,
    room: int,
) -> tuple[list[int], float]:
    """Return for each sequence how many of its drafts are sent, and by which part that gains."""
    offers = [(-chance, index) for index, own in enumerate(chances) for chance in own]
    if len(chances) > 1:
        offers.sort()  # the likeliest first; of equal ones, those of older sequences
    offers = offers[:room]
    best, gain = len(offers), 0.0
    if costs is not None:
        best, gain = _best(offers, num_rows, costs)
    counts = [0] * len(chances)
    for _, index in offers[:best]:
        counts[index] += 1
    return counts, gain


def _best(
    offers: Series[tuple[float, int]], num_rows: int, costs: tuple[float, Seconds]
) -> tuple[int, float]:
    """Return how many of these drafts raise the tokens per second most, and by which part."""
    plain, seconds = costs
    tokens, most = float(num_rows), len(offers)
    least = best_speed = num_rows / plain * (1.0 + LEAST_GAIN)
    best = 0
    for count, (negative, _) in enumerate(offers, 1):
        tokens -= negative
        rows = num_rows + count
        if rows > _FEW_ROWS and count < most and rows & ((1 << rows.bit_length() - 2) - 1):
            continue
        speed = tokens / seconds(rows)
        if speed > best_speed:
            best, best_speed = count, speed
    return best, best_speed / least * (1.0 + LEAST_GAIN) - 1.0 if best else 0.0
