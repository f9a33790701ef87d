"""Ends a request's work with its result, a disconnect, a deadline or a stop, whatever is first."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from octavo.transport.errors import ApiError, ClientGoneError

if TYPE_CHECKING:
    from octavo.transport.exchange import HttpExchange


class RequestTask:
    """A task for one request's work, beside another that watches the connection."""

    def __init__(self, exchange: HttpExchange) -> None:
        self._exchange = exchange
        self._task: asyncio.Task[None] | None = None
        self._why: Exception | None = None

    def stop(self, why: Exception) -> None:
        """Cancel the work, and let `run` raise `why`."""
        if self._why is None:
            self._why = why
            if self._task is not None:
                self._task.cancel()

    async def run(self, work: Coroutine[Any, Any, None], seconds: float) -> None:
        """Run the work until it ends or is stopped; the body must have been read before."""
        why = self._why
        if why is not None:  # it was stopped before
            work.close()
            raise why
        loop = asyncio.get_running_loop()
        self._task = task = loop.create_task(work)
        watch = loop.create_task(self._watch())
        timer = loop.call_later(seconds, self._end_late, seconds)
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:  # the server is stopping
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            timer.cancel()
            watch.cancel()
            self._task = None  # its frames refer to this object
        if task.cancelled():
            raise self._why or ClientGoneError
        error = task.exception()
        if error is not None:
            raise error

    async def _watch(self) -> None:
        await self._exchange.left()
        self.stop(ClientGoneError())

    def _end_late(self, seconds: float) -> None:
        limit = f"{seconds:.0f} s" if seconds >= 10 else f"{seconds * 1000:.0f} ms"
        message = f"the request was not done within {limit}"
        self.stop(ApiError(504, message, code="deadline_exceeded"))
