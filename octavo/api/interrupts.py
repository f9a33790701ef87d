"""Ctrl-C held back until a step of the engine has ended: inside one it would break the engine."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any


class HeldInterrupts:
    """A context in which a Ctrl-C waits for `check` or the end; a second one does not wait.

    Signals arrive only in the main thread; elsewhere it does nothing.
    """

    def __init__(self) -> None:
        self._previous: Any = None
        self._is_pending = False
        self.was_forced = False  # by a second Ctrl-C, wherever the program was

    def __enter__(self) -> HeldInterrupts:
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGINT)
            if callable(previous):
                self._previous = previous
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        if not isinstance(error, KeyboardInterrupt):  # an error must not swallow a Ctrl-C
            self.check()

    def check(self) -> None:
        """Handle a Ctrl-C that has come meanwhile."""
        if self._is_pending:
            self._is_pending = False
            self._previous(signal.SIGINT, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending:
            self.was_forced = True
            self._previous(number, frame)
        self._is_pending = True
