"""The part of a thread's time that others may take with what they send."""

from __future__ import annotations

from collections.abc import Callable

SHARE = 8  # what others send is read in one second of so many, and in more for a moment
MOMENT_SECONDS = 0.1


class Allowance:
    """The time that one sender, or all senders of one endpoint, may take."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._paid_until = 0.0

    def rest(self) -> float:
        """Return for how many seconds nothing is read, since all that may be has been taken."""
        return self._paid_until - MOMENT_SECONDS - self._clock()

    def take(self, seconds: float) -> None:
        """Count what the thread has computed (`time.thread_time`) for it.

        A pause of this process, or of the machine, is not counted, and neither is waiting for
        other threads.
        """
        self._paid_until = max(self._paid_until, self._clock()) + SHARE * seconds
