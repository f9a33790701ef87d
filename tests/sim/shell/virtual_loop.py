"""An asyncio event loop without a clock or a network: time is a number, order comes from a seed.

When no callback is ready, the time jumps to the next timer. Callbacks that are ready at the same
time run in an order drawn from the seed, except that calls on one object keep their order, as
asyncio promises. A loop in which nothing can ever happen again raises an error.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import Any


class StuckError(AssertionError):
    """A deadlock: tasks wait, and no callback or timer is left."""


class _NoNetwork:
    """A selector without files, which moves the clock instead of waiting."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise StuckError("all tasks wait, and no callback or timer is left")
        self._loop.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time; `run_until_complete` runs a coroutine in it."""

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
        """Skip the wake-up: no other thread uses the loop."""


def _source(handle: asyncio.Handle) -> int:
    """Return the identity of a callback's object, whose calls keep their order."""
    owner = getattr(handle._callback, "__self__", None)  # type: ignore[attr-defined]
    return id(handle if owner is None or isinstance(owner, asyncio.Future) else owner)
