"""Judges from what is heard of an engine, and when, whether it is alive and getting on."""

from __future__ import annotations

from octavo.client.restart_policy import Timing
from octavo.wire.message_types import Pulse

TICK_SECONDS = 0.25  # how often it is looked after


class Liveness:
    """Over one engine; all times are on the caller's clock."""

    def __init__(self, timing: Timing, now: float, patience: float = 1.0) -> None:
        self._timing = timing
        self._patience = patience
        self._began_at = now  # its process; later: it was ready
        self._heard_at = now  # the last sign of life
        self._moved_at = now  # when its work was last seen to go on
        self._looked_at = now
        self._pulse = Pulse(0, 0.0, 0)
        self._is_ready = False

    def ready(self, now: float) -> None:
        """It is loaded."""
        self._is_ready = True
        self._began_at = now

    def age(self, now: float) -> float:
        """For how long it has been ready."""
        return now - self._began_at if self._is_ready else 0.0

    def hear(self, now: float, pulse: Pulse | None) -> None:
        """Something came: a pulse, or (None) what its work has brought."""
        self._heard_at = now
        if pulse is None or pulse.step != self._pulse.step:
            self._moved_at = now
        if pulse is not None:
            self._pulse = pulse

    def move(self, now: float) -> None:
        """Nothing was to be expected of it before now."""
        self._moved_at = now

    def wake(self, now: float) -> None:
        """Whoever looks after it did not look, and may have read nothing, until now."""
        self._heard_at = self._moved_at = self._looked_at = now

    def is_fresh(self, now: float) -> bool:
        """Whether it is not half as silent yet as it is ended for.

        Later than a tick after the last look it is we who sleep, and signs of life lie unread.
        """
        silence = min(now, self._looked_at + TICK_SECONDS) - self._heard_at
        return self._is_ready and silence <= self._timing.silence_seconds / 2

    def look(self, now: float) -> None:
        """Look regularly. If we slept, that says nothing of the engine, which may have too."""
        slept = now - self._looked_at - TICK_SECONDS
        if slept > 2 * TICK_SECONDS:
            self.wake(now)
            self._began_at += slept
        self._looked_at = now

    def charge(self, now: float, has_work: bool) -> str | None:
        """What it is to be ended for, if for anything; all that has come has been heard."""
        if not self._is_ready:
            seconds = self._timing.start_seconds
            if now - self._began_at > seconds:
                return f"the engine was not ready {seconds:.0f} s after its start"
            return None
        silence = now - self._heard_at
        if silence > self._timing.silence_seconds:
            return f"it gave no sign of life for {silence:.1f} s"
        if not has_work:
            self._moved_at = now
        seconds = now - self._moved_at
        if seconds > self._patience * self._timing.step_seconds(self._pulse.num_tokens):
            return (
                f"step {self._pulse.step} was not done after {seconds:.1f} s; it says itself that "
                f"it has been at it for {self._pulse.busy_seconds:.1f} s"
            )
        return None
