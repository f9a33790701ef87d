"""An asyncio event loop without a clock or a network: time is a number, order comes from a seed.

When nothing is ready it jumps to the next timer. Whatever is ready at one moment runs in an order
drawn from the seed, except that calls on one object stay in theirs, as asyncio promises. A loop in
which nothing can ever happen again is an error, not a wait.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any


class StuckError(AssertionError):
    """Somebody waits, and there is nothing left that could end it."""


class _NoNetwork:
    """A selector that has nothing to select from, and moves the clock instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise StuckError("everybody waits, and nothing will ever happen")
        self._loop.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """Run coroutines in it with `run_until_complete`."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.now = 1000.0
        self._selector = _NoNetwork(self)
        self._random = random.Random(seed)

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        self._shuffle()
        super()._run_once()  # type: ignore[misc]

    def _shuffle(self) -> None:
        ready: deque[asyncio.Handle] = self._ready  # type: ignore[attr-defined]
        if len(ready) < 2:
            return
        places = [_source(handle) for handle in ready]
        queues: dict[int, deque[asyncio.Handle]] = {}
        for place, handle in zip(places, ready, strict=True):
            queues.setdefault(place, deque()).append(handle)
        self._random.shuffle(places)
        ready.clear()
        ready.extend(queues[place].popleft() for place in places)

    def _process_events(self, events: list[Any]) -> None:
        assert not events

    def _write_to_self(self) -> None:
        """Nobody is in another thread."""


def _source(handle: asyncio.Handle) -> int:
    """Calls of one source stay in order: the object whose method it is, or the handle itself."""
    owner = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
    return id(handle if owner is None or isinstance(owner, asyncio.Future) else owner)
