"""The number of drafts that each sequence gets in a step: as many as gain more than they cost.

A step gives a token to each sequence that decodes, and takes so many seconds. A draft adds a token
with the chance that it is right, and the seconds of a row. It is sent if tokens per second rise,
which those do that are likelier than the step's tokens for the seconds of a row. What a row costs
was measured (step_time.py). Where steps are bound by reading weights it costs little, and where
they are bound by arithmetic it costs nearly as much as the first; then no drafts may be left.
"""

from __future__ import annotations

from collections.abc import Sequence as Series

from octavo.core.config import CoreConfig
from octavo.core.pace.learner import Learner
from octavo.core.sequence import Sequence

# A row of a step takes this part of the time of a step without rows, until it has been measured.
# docs/speculation.md has measurements.
ROW_COST = 0.25
NUM_MEASURED = 16  # chunks with drafts from which on the cost of a row counts as measured
_NUM_BETWEEN = 8  # steps between two improvements of what is known of their time


class DraftCounts:
    """The rule for the drafts of a step."""

    def __init__(self, config: CoreConfig, learner: Learner) -> None:
        self._most_tokens = config.max_num_batched_tokens
        self._most_drafts = config.max_step_drafts or config.max_num_batched_tokens
        self._learner = learner
        self._num_sent = 0  # chunks with drafts

    def limit(self, running: Series[Sequence], *, could_start: bool) -> None:
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
        fixed, row = self._costs(drafting)
        for each, count in zip(
            drafting, _best_counts(drafting, num_rows, fixed, row, room), strict=True
        ):
            each.keep_drafts(count)
            self._num_sent += count > 0

    def _costs(self, drafting: Series[Sequence]) -> tuple[float, float]:
        """Return the seconds of a step without rows, and of each row; or such parts of them."""
        if not any(each.chances for each in drafting):
            return 1.0, 0.0  # all are sent
        fixed, row = self.seconds(sum([each.num_planned for each in drafting]))
        return (fixed, row) if fixed > 0.0 else (1.0, ROW_COST)

    def seconds(self, num_read: int) -> tuple[float, float]:
        """Return the seconds of a step without rows, and of each row; 0 if they are not known."""
        if self._learner.num_new >= _NUM_BETWEEN:
            self._learner.learn()
        times = self._learner.times
        fixed = times.decoding_seconds(0, num_read)
        row = times.coefficients[1]
        if fixed <= 0.0:
            return 0.0, 0.0
        if self._num_sent >= NUM_MEASURED:
            return fixed, row
        if row > ROW_COST * fixed:
            # From steps of as many rows each, only the sum is known, not what is due to the rows.
            fixed = (fixed + row) / (1.0 + ROW_COST)
        return fixed, ROW_COST * fixed


def _best_counts(
    drafting: Series[Sequence], num_rows: int, fixed: float, row: float, room: int
) -> list[int]:
    """Return for each sequence how many of its drafts gain more than they cost."""
    offers = [
        (-chance, index)
        for index, each in enumerate(drafting)
        for chance in (each.chances or (1.0,) * len(each.drafts))[: len(each.drafts)]
    ]
    if len(drafting) > 1:
        offers.sort()  # the likeliest first; of equal ones, those of older sequences
    counts = [0] * len(drafting)
    tokens, seconds = float(num_rows), fixed + row * num_rows
    for negative, index in offers[:room]:
        if -negative * seconds <= tokens * row:
            break
        counts[index] += 1
        tokens -= negative
        seconds += row
    return counts
