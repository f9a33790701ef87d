"""How long an engine may take for what, and when dead ones are no longer replaced."""

from __future__ import annotations

from dataclasses import dataclass

MAX_PATIENCE = 8.0
NUM_AT_ONCE = 2  # barren engines in a row that are followed by the next without a rest


@dataclass(frozen=True, slots=True)
class Timing:
    """Limits in seconds, and how often an engine may fail."""

    watchdog_seconds: float = 30.0  # for a step …
    watchdog_token_seconds: float = 0.1  # … and for each token in it
    silence_seconds: float = 5.0  # without a sign of life
    start_seconds: float = 1800.0  # until a model is loaded
    calm_seconds: float = 60.0  # of life after which earlier deaths are forgiven
    max_barren: int = 8  # engines one after the other that died before they gave a token
    rest_seconds: float = 0.1  # before the third of those; doubled for each further
    max_rest_seconds: float = 5.0

    def step_seconds(self, num_tokens: int) -> float:
        """How long a step of so many tokens may take."""
        return self.watchdog_seconds + num_tokens * self.watchdog_token_seconds


class RestartPolicy:
    """The count of engines that died barren: before they had given a token."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self.num_barren = 0
        self.num_restarts = 0

    def bear(self) -> None:
        """There was progress: a token, or a verdict over the request that had killed."""
        self.num_barren = 0

    def death(self, age_seconds: float) -> None:
        """An engine has ended, so long after it was ready."""
        if age_seconds > self._timing.calm_seconds:
            self.num_barren = 0
        else:
            self.num_barren += 1

    def patience(self) -> float:
        """How many times longer the next engine's steps may take.

        A step that was ended for its length comes again in the next engine. On a machine that is
        slow just now it must be let through one day, or the watchdog would be what kills.
        """
        return float(min(MAX_PATIENCE, 2.0**self.num_barren))

    def rest(self) -> float | None:
        """Seconds to wait before the next engine; None: there shall be no other."""
        if self.num_barren >= self._timing.max_barren:
            return None
        self.num_restarts += 1
        if self.num_barren <= NUM_AT_ONCE:
            return 0.0
        seconds = self._timing.rest_seconds * 2.0 ** (self.num_barren - NUM_AT_ONCE - 1)
        return float(min(self._timing.max_rest_seconds, seconds))

    def farewell(self, reason: str) -> str:
        """Why there is no other engine."""
        return (
            f"{self.num_barren} engines in a row ended before they gave a token, so no more are "
            f"started; the last one: {reason}"
        )
