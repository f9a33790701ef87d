"""Teaches a model of the time of steps from the engine's statistics, when it is asked to."""

from __future__ import annotations

from octavo.core.pace.step_time import StepTimes
from octavo.core.stats import EngineStats

# The number of steps to learn from after a step with prompts: the first of them, in which those
# prompts ended, and the most recent ones.
_MOST_LEARNED = 8


class Learner:
    """The model of the time of steps, and how far it has learned."""

    def __init__(self, stats: EngineStats, least: int) -> None:
        self.times = StepTimes()
        self._stats = stats
        self._least = least  # tokens of prompts that are hardly any
        self._num_learned = 0

    @property
    def num_new(self) -> int:
        """The steps that have ended since the model last learned."""
        return self._stats.num_ended - self._num_learned

    def learn(self) -> None:
        """Add the steps that have ended since the last time to what is known."""
        ended = self._stats.ended_after(self._num_learned, _MOST_LEARNED)
        self.times.learn(ended, self._least)
        self._num_learned = self._stats.num_ended
