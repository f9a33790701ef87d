"""The comparison of steps with drafts with those without, for every source of drafts.

How many drafts raise the tokens per second follows from what steps of each width take, which is
measured (width_times.py). Without drafts, that is measured now and then in a few steps that have
none: the more often, the less drafts gain. A step without drafts may be planned while the one
before it runs, and one with drafts may not. So of those without, the ones are measured that were.

What drafts have saved and cost is kept in an account: each accepted one saves a sequence's part of
a step without drafts; what a step takes longer for them, and the time of a second model, they cost.
They may cost a small share of the engine's time more than they save. When that is spent, none is
made until there is enough for another trial. So they cost no more than this share where they do
not pay, even if their chances are not what their source says.
"""

from __future__ import annotations

import math

from octavo.core.pace.learner import Learner
from octavo.core.pace.width_times import Seconds, WidthTimes
from octavo.core.plan import StepPlan

SHARE = 0.01  # of the time, which drafts may cost without saving any
FIRST_SECONDS = 0.5  # in the account of a new engine
MOST_SECONDS = 1.0  # that may be in it
TRIAL_SECONDS = 0.2  # that must be in it again when it has been spent
MOST_DEBT = 10.0
# … and no more than so many steps without drafts take: to a small model, half a second is much.
MOST_STEPS, TRIAL_STEPS = 32.0, 8.0
# Beyond so many times what it usually takes, the time of a second model is a stall. The machine's
# stalls are not held against it: as many seconds of them as others have taken outside of it, and a
# small share of the time, which it has saved up to so many.
STALL = 2.0
MOST_EXCUSED = 5.0
LEAST_GAIN = 0.02  # in tokens per second: for less, none is made
# After so many steps with drafts, some have none: where the time of those without is not known; and
# for each part by which drafts raise the tokens per second, between a least and a most number.
NUM_UNKNOWN = 16
NUM_FOR_GAIN, LEAST_BETWEEN, MOST_BETWEEN = 1000.0, 32, 512
NUM_WITHOUT = 3  # steps in a row: the first follows none, and a second model proposes in the last
LEAST_WAIT = 2  # steps until they begin: a second model proposes in the one before
NUM_TOGETHER = 4  # steps that continue each other, whose mean is learned
# Steps between two improvements of what is known of positions that are read. Each takes the time of
# 50 drafts, and learns from the last few steps only, however many there were.
_NUM_LEARNED = 32
_LEAST_PART = 0.25  # of a step is not due to the positions that it reads


class Comparison:
    """The seconds of steps with and without drafts, and the account of the drafts."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner
        self.times = WidthTimes()
        self.seconds = FIRST_SECONDS  # in the account
        self.is_resting = False  # it has been spent
        self._plain = math.inf  # seconds of a step without drafts; before any is measured
        self._excused = MOST_EXCUSED  # seconds of stalls
        self._num_between = NUM_UNKNOWN  # steps with drafts until one must have none
        self._num_with_drafts = 0  # steps, since the time of those without was measured
        self._without = -NUM_WITHOUT  # the first of the last steps that must have none
        self._wait = LEAST_WAIT  # steps until the next ones that must have none
        # Steps without drafts that continue each other, and have not been learned yet: the last of
        # them, how many there are, and what they took together.
        self._last: StepPlan | None = None
        self._num_alike, self._seconds_alike = 0, 0.0

    def may_have_drafts(self, step: int) -> bool:
        """Return whether a step may have drafts; else it shows what one takes without."""
        return not (self.is_resting or self._without <= step < self._without + NUM_WITHOUT)

    def costs(self, num_rows: int, num_read: int) -> tuple[float, Seconds]:
        """Return the seconds of a step without drafts, and what gives those of one with more rows.

        They are parts of a step without rows while nothing is measured.
        """
        if self._learner.num_new >= _NUM_LEARNED:
            self._learner.learn()
        times = self.times
        plain = times.seconds(num_rows)
        reading = self._learner.times.reading_seconds(num_read) if times else 0.0
        expected = times.expected(num_rows, plain)
        return plain + reading, lambda rows: reading + expected(rows)

    def has_chosen(self, num_rows: int, gain: float) -> None:
        """Note by which part the drafts of a step raise the tokens per second, as expected."""
        most = NUM_UNKNOWN
        if self.times.knows(num_rows):
            most = int(min(max(LEAST_BETWEEN, NUM_FOR_GAIN * gain), MOST_BETWEEN))
        self._num_between = most

    def add_alike(self, plan: StepPlan, seconds: float) -> None:
        """Add a step without drafts that continues the last one; many are learned together."""
        last = self._last
        if last is not None and last.slots != plan.slots:
            self._learn_alike()
        self._last = plan
        self._num_alike += 1
        self._seconds_alike += seconds
        if self._num_alike == NUM_TOGETHER:
            self._learn_alike()

    def _learn_alike(self) -> None:
        """Add the mean of the steps that continue each other to what is known."""
        if self._last is None:
            return
        plan, count, seconds = self._last, self._num_alike, self._seconds_alike
        self._last, self._num_alike, self._seconds_alike = None, 0, 0.0
        reading = self._learner.times.reading_seconds(sum(plan.starts))
        own = _own_seconds(seconds / count, reading)
        if own > 0.0:
            self.times.learn(plan.num_tokens, own, has_drafts=False, count=count)
            self._has_measured_without(plan.num_tokens)
        self._settle(seconds, 0.0)

    def _has_measured_without(self, num_rows: int) -> None:
        """Note that the time of a step of so many rows without drafts is known anew."""
        self._num_with_drafts, self._wait = 0, LEAST_WAIT
        self._plain = self.times.seconds(num_rows)

    def _settle(self, seconds: float, saved: float) -> None:
        """Add to the account what steps of so many seconds have saved, and their share."""
        left = self.seconds + SHARE * seconds + saved
        self.seconds = max(-MOST_DEBT, min(left, MOST_SECONDS, MOST_STEPS * self._plain))
        trial = min(TRIAL_SECONDS, TRIAL_STEPS * self._plain)
        self.is_resting = self.seconds < (trial if self.is_resting else 0.0)

    def learn(
        self,
        plan: StepPlan,
        num_accepted: int,
        seconds: float,
        ahead_seconds: float = 0.0,
        usual_seconds: float = math.inf,
        *,
        is_usual: bool = True,
    ) -> None:
        """Add a step that has ended to what is known, and to the account.

        Its own seconds are without those of a second model, whose passes usually take the last.
        `is_usual` says that it was planned when steps without drafts are: while another one ran, if
        the engine has two in flight.
        """
        self._learn_alike()
        times, num_rows = self.times, plan.samples.count(True)
        num_drafts = sum([len(drafts) for _, drafts in plan.drafts])
        if plan.branches:
            num_drafts += plan.num_branched
        num_tokens = plan.num_tokens
        reading = self._learner.times.reading_seconds(sum(plan.starts))
        self._excused += SHARE * seconds
        if num_rows and num_tokens == num_rows + num_drafts and seconds > 0.0:
            if times and seconds > STALL * (usual := times.seconds(num_tokens) + reading):
                self._excused += seconds - STALL * usual
            is_usual = is_usual or plan.step == self._without + 1
            if num_drafts or is_usual:
                own = _own_seconds(seconds, reading)
                times.learn(num_tokens, own, has_drafts=num_drafts > 0)
            if num_drafts:
                self._num_with_drafts += 1
            elif is_usual:
                self._has_measured_without(num_rows)
        has_passed = plan.step >= self._without + NUM_WITHOUT
        if has_passed and self._num_with_drafts >= self._num_between:
            self._without = plan.step + self._wait
            self._wait = min(2 * self._wait, MOST_BETWEEN)  # prompts may hide what it takes
        self._excused = min(self._excused, MOST_EXCUSED)
        excused = min(self._excused, max(0.0, ahead_seconds - STALL * usual_seconds))
        self._excused -= excused
        saved = 0.0
        if num_drafts and times:
            plain = times.seconds(num_rows)
            saved = (plain + reading) * num_accepted / num_rows
            saved -= times.seconds(num_rows + num_drafts) - plain
        self._settle(seconds, saved - (ahead_seconds - excused))


def _own_seconds(seconds: float, reading: float) -> float:
    """Return what a step takes without the positions that it reads."""
    return max(_LEAST_PART * seconds, seconds - reading)
