"""Ctrl-C while the loop of a conversation runs: the first ends what runs, a second the program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Coroutine
from types import FrameType, TracebackType
from typing import Any, TypeVar

from octavo.cli.commands import INTERRUPTED
from octavo.observe.output import leave_at_once

_PLAIN = b"\x1b[0m\n"  # a style of the answer must not outlive it

Result = TypeVar("Result")


class Interrupts:
    """A context in which a Ctrl-C cancels what runs; one that comes before its end is not awaited.

    A loop that is left in the midst of its work could not be used again. Signals arrive only in the
    main thread; elsewhere it does nothing.
    """

    def __init__(self, *, is_last: bool = False) -> None:
        self._is_last = is_last  # nothing follows, so the first one ends the program
        self._has_come = False
        self._previous: Any = None
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)

    def run(self, runner: asyncio.Runner, work: Coroutine[Any, Any, Result]) -> Result:
        """Return what a coroutine returns; raise KeyboardInterrupt if a Ctrl-C has ended it."""

        async def whole() -> Result:
            self._task = asyncio.current_task()
            if self._has_come:
                work.close()
                raise asyncio.CancelledError
            return await work

        try:
            return runner.run(whole())
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if not (self._has_come or self._is_last):
            self._has_come = True
            if self._task is not None:
                self._task.cancel()
                self._task.get_loop().call_soon_threadsafe(lambda: None)  # it may wait
            return
        with contextlib.suppress(OSError, ValueError):
            if sys.stdout.isatty():  # past a buffer, in whose write this may be
                os.write(sys.stdout.fileno(), _PLAIN)
        leave_at_once(INTERRUPTED)
