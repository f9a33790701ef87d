"""How long an engine may take for each task, and when a failed engine is no longer replaced."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from octavo.core.config import ConfigError

MAX_TIMEOUT_FACTOR = 8.0
NUM_WITHOUT_DELAY = 2  # engines in a row that are replaced at once when they fail
_MAY_BE_ZERO = (
    *("watchdog_token_seconds", "stable_seconds", "start_seconds", "spare_delay_seconds"),
    *("restart_delay_seconds", "max_restart_delay_seconds"),
)


@dataclass(frozen=True, slots=True)
class Timing:
    """Limits in seconds, and how often an engine may fail."""

    watchdog_seconds: float = 30.0  # for a step …
    watchdog_token_seconds: float = 0.1  # … and for each token in it
    silence_seconds: float = 5.0  # without a sign of life
    start_seconds: float = 1800.0  # until the model is loaded
    stable_seconds: float = 60.0  # an engine that ran longer does not count as failed
    max_failed_engines: int = 8  # in a row that ended without producing a token
    restart_delay_seconds: float = 0.1  # before the third of those; doubled for each further one
    max_restart_delay_seconds: float = 5.0
    # From when an engine is ready until a spare one is started: requests that continue go first.
    spare_delay_seconds: float = 3.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name in _MAY_BE_ZERO else 1e-3
            if not least <= value < math.inf:
                raise ConfigError(f"{field.name}={value} must be a number of at least {least}")

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
