"""How long an engine may take for each task, and when a failed engine is no longer replaced."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.config import ConfigError
from octavo.options.declare import check, option

MAX_TIMEOUT_FACTOR = 8.0
NUM_WITHOUT_DELAY = 2  # engines in a row that are replaced at once when they fail


@dataclass(frozen=True, slots=True)
class Timing:
    """Limits in seconds, and how often an engine may fail."""

    watchdog_seconds: float = option(
        30.0, "the longest time of a step, after which the engine is killed and replaced", "SECONDS"
    )
    watchdog_token_seconds: float = option(
        0.1, "what is added to that for each token of the step", "SECONDS", least=0
    )
    silence_seconds: float = option(
        5.0, "time without a sign of life after which an engine is killed and replaced", "SECONDS"
    )
    start_seconds: float = option(
        1800.0, "time for an engine to load the model", "SECONDS", least=0
    )
    stable_seconds: float = option(
        60.0, "an engine that ran for longer does not count as failed", "SECONDS", least=0
    )
    max_failed_engines: int = option(
        8, "engines in a row without a token, after which no more are started", "COUNT"
    )
    restart_delay_seconds: float = option(
        0.1,
        "wait before the third of those; doubled for each further one",
        "SECONDS",
        least=0,
    )
    max_restart_delay_seconds: float = option(5.0, "the longest such wait", "SECONDS", least=0)
    # From when an engine is ready: requests that continue go first.
    spare_delay_seconds: float = option(
        3.0, "wait before the next spare engine is started", "SECONDS", least=0
    )

    def __post_init__(self) -> None:
        check(self, ConfigError)

    def step_seconds(self, num_tokens: int) -> float:
        """Return how long a step of so many tokens may take."""
        return self.watchdog_seconds + num_tokens * self.watchdog_token_seconds


class RestartPolicy:
    """A count of the engines in a row that failed: that ended without producing a token."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self.num_failed_engines = 0
        self.num_restarts = 0

    def note_progress(self) -> None:
        """Note a token, or that the request that crashed engines was found."""
        self.num_failed_engines = 0

    def note_end(self, seconds_ready: float) -> None:
        """Note that an engine has ended, and for how long it was ready."""
        if seconds_ready > self._timing.stable_seconds:
            self.num_failed_engines = 0
        else:
            self.num_failed_engines += 1

    def step_timeout_factor(self) -> float:
        """Return by how much to extend the step timeout of the next engine.

        A step that was ended because it took too long is repeated by the next engine. On a machine
        that is slow for a while it must succeed at some point, or every engine would be killed.
        """
        return float(min(MAX_TIMEOUT_FACTOR, 2.0**self.num_failed_engines))

    def next_delay(self) -> float | None:
        """Return the seconds to wait before the next engine; None to give up."""
        if self.num_failed_engines >= self._timing.max_failed_engines:
            return None
        self.num_restarts += 1
        exponent = self.num_failed_engines - NUM_WITHOUT_DELAY - 1
        if exponent < 0:
            return 0.0
        seconds = self._timing.restart_delay_seconds * 2.0**exponent
        return float(min(self._timing.max_restart_delay_seconds, seconds))

    def give_up_message(self, reason: str) -> str:
        """Return the error for all callers when no further engine is started."""
        return (
            f"{self.num_failed_engines} engines in a row ended before they produced a token, so "
            f"no more are started; the last one: {reason}"
        )
