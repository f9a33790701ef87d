"""Decides from an engine's frames, and from when they came, whether it is alive and progressing."""

from __future__ import annotations

from octavo.client.restart_policy import Timing
from octavo.wire.message_types import Heartbeat

TICK_SECONDS = 0.25  # how often the engine is checked


class Liveness:
    """The signs of life of one engine; all times are on the caller's clock."""

    def __init__(self, timing: Timing, now: float, step_timeout_factor: float = 1.0) -> None:
        self._timing = timing
        self._step_timeout_factor = step_timeout_factor
        self._began_at = now  # when its process began; later, when it became ready
        self._last_frame_at = now
        self._progress_at = now  # when its work was last seen to go on
        self._ticked_at = now
        self._heartbeat = Heartbeat(0, 0.0, 0)
        self._is_ready = False

    def note_ready(self, now: float) -> None:
        """Note that the model is loaded."""
        self._is_ready = True
        self._began_at = now

    def seconds_ready(self, now: float) -> float:
        """Return for how long the engine has been ready."""
        return now - self._began_at if self._is_ready else 0.0

    def note_frame(self, now: float, heartbeat: Heartbeat | None) -> None:
        """Note a frame: a heartbeat, or (None) any other message, which is progress."""
        self._last_frame_at = now
        if heartbeat is None or heartbeat.step != self._heartbeat.step:
            self._progress_at = now
        if heartbeat is not None:
            self._heartbeat = heartbeat

    def note_work(self, now: float) -> None:
        """Note that the engine has work from now on; it could make no progress before."""
        self._progress_at = now

    def restart_clocks(self, now: float) -> None:
        """Ignore the time until now, in which this process may have read no frames."""
        self._last_frame_at = self._progress_at = self._ticked_at = now

    def is_fresh(self, now: float) -> bool:
        """Return whether the last sign of life is newer than half of `silence_seconds`.

        If this process itself has stalled for more than a tick, the time of the stall does not
        count: frames may be unread.
        """
        silence = min(now, self._ticked_at + TICK_SECONDS) - self._last_frame_at
        return self._is_ready and silence <= self._timing.silence_seconds / 2

    def note_tick(self, now: float) -> None:
        """Note a regular tick. If ticks were missed, this process stalled: blame no engine."""
        stalled = now - self._ticked_at - TICK_SECONDS
        if stalled > 2 * TICK_SECONDS:
            self.restart_clocks(now)
            self._began_at += stalled
        self._ticked_at = now

    def overdue_reason(self, now: float, has_work: bool) -> str | None:
        """Return why the engine must be ended, or None. Call only after reading all frames."""
        if not self._is_ready:
            seconds = self._timing.start_seconds
            if now - self._began_at > seconds:
                return f"the engine was not ready {seconds:.0f} s after its start"
            return None
        silence = now - self._last_frame_at
        if silence > self._timing.silence_seconds:
            return f"it gave no sign of life for {silence:.1f} s"
        if not has_work:
            self._progress_at = now
        seconds = now - self._progress_at
        heartbeat = self._heartbeat
        if seconds > self._step_timeout_factor * self._timing.step_seconds(heartbeat.num_tokens):
            return (
                f"step {heartbeat.step} was not done after {seconds:.1f} s; by its own report it "
                f"has been running for {heartbeat.busy_seconds:.1f} s"
            )
        return None
