"""Measures for how long callbacks hold an event loop, in processor time of its thread."""

from __future__ import annotations

import asyncio
import time

TICK_SECONDS = 0.002
NUM_KEPT = 10


class LoopHolds:
    """The longest holds of the loop: the processor time between two ticks of a timer.

    The timer's callback runs once in each pass of a busy loop. A machine that gives the processor
    to other programs does not lengthen a hold.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._longest: list[tuple[float, float]] = []  # seconds, when
        self._before = time.thread_time()
        loop.call_soon(self._tick)

    def _tick(self) -> None:
        now = time.thread_time()
        held = now - self._before
        self._before = now
        if len(self._longest) < NUM_KEPT or held > self._longest[-1][0]:
            self._longest.append((held, time.monotonic()))
            self._longest.sort(reverse=True)
            del self._longest[NUM_KEPT:]
        self._loop.call_later(TICK_SECONDS, self._tick)

    def take(self) -> list[tuple[float, float]]:
        """Return the longest holds since the last call: milliseconds, and when each ended."""
        taken = [(1000 * seconds, at) for seconds, at in self._longest]
        self._longest.clear()
        return taken
