"""How an engine fares over all its processes: when a step last ended, deaths, restarts, pauses."""

from __future__ import annotations


class EngineVitals:
    """The counts and times of one engine; all times are on its client's clock."""

    def __init__(self, now: float) -> None:
        self.num_deaths = 0  # processes that ended, those that never became ready included
        self.num_restarts = 0  # processes that became ready after another had ended
        self.stepped_at = now  # when a step was last seen to end, or the engine to become ready
        self._num_steps = 0  # of the present process, as it last reported them
        self._ended_at: float | None = None  # while there is no engine
        self._down_seconds = 0.0

    def down_seconds(self, now: float) -> float:
        """Return for how long all requests were held because there was no engine."""
        since = now if self._ended_at is None else self._ended_at
        return self._down_seconds + max(0.0, now - since)

    def note_ready(self, now: float) -> None:
        """Note that an engine is ready."""
        if self._ended_at is not None:
            self._down_seconds = self.down_seconds(now)
            self._ended_at = None
            self.num_restarts += 1
        self.stepped_at = now
        self._num_steps = 0

    def note_end(self, now: float, *, is_death: bool = True) -> None:
        """Note that the engine's process has ended, by itself or because that was asked for."""
        self.num_deaths += is_death
        if self._ended_at is None:
            self._ended_at = now

    def note_steps(self, now: float, num_steps: int) -> None:
        """Note how many steps the present process has planned, which grows as they end."""
        if num_steps > self._num_steps:
            self._num_steps = num_steps
            self.note_step(now)

    def note_step(self, now: float) -> None:
        """Note that a step has ended."""
        self.stepped_at = now
