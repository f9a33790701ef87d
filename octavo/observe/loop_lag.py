"""Measures how late the event loop is, by a timer of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TICK_SECONDS = 0.1  # whatever holds the loop for longer is seen


class LoopLag:
    """A timer that reports at every tick how many seconds it is late."""

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the timer in the event loop that runs."""
        loop = asyncio.get_running_loop()
        self._begin(loop, loop.time())

    def stop(self) -> None:
        """Stop the timer; `start` begins it again, in any loop."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin(self, loop: asyncio.AbstractEventLoop, now: float) -> None:
        due = now + TICK_SECONDS
        self._timer = loop.call_at(due, self._tick, loop, due)

    def _tick(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        self._report(max(0.0, now - due))
        self._begin(loop, now)
