"""Turns of the event loop within long work for one request, and the release of what it held."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

PIECE = 32  # prompts or answers that are worked on without a turn of the event loop
PIECE_BYTES = 1 << 16  # of a response that are made without one


class Turns:
    """A count of the prompts or answers that were worked on, with a turn after each `PIECE`."""

    def __init__(self) -> None:
        self._count = 0

    def is_due(self) -> bool:
        """Count one more; return whether others should have their turn."""
        self._count += 1
        return self._count % PIECE == 0

    async def take(self) -> None:
        """Count one more; let other requests run if it is their turn."""
        if self.is_due():
            await asyncio.sleep(0)


class ByteTurns:
    """A count of the bytes that were made, with a turn after each `PIECE_BYTES`."""

    def __init__(self) -> None:
        self._num_bytes = 0

    def is_due(self, num_bytes: int) -> bool:
        """Count some more; return whether others should have their turn."""
        self._num_bytes += num_bytes
        if self._num_bytes <= PIECE_BYTES:
            return False
        self._num_bytes = 0
        return True


class Releases:
    """The requests that have ended and still hold something, which is released piece by piece.

    The work for a request may be cancelled at any await. So these have tasks of their own.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def add(self, work: Iterator[None]) -> None:
        """Release the first piece now, and the rest, if there is any, in turns."""
        for _ in range(PIECE):
            if next(work, self) is self:
                return
        task = asyncio.get_running_loop().create_task(_finish(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait until nothing is held."""
        while self._tasks:
            await asyncio.wait(self._tasks)


async def _finish(work: Iterator[None]) -> None:
    turns = Turns()
    for _ in work:
        await turns.take()
