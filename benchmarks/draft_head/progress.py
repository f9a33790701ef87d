"""Lines about how far a long run is, and when it is expected to end."""

from __future__ import annotations

import time


class Progress:
    """One step of a run, of which so many parts were done before."""

    def __init__(self, what: str, total: int, num_done: int = 0) -> None:
        self._what, self._total, self._first = what, total, num_done
        self._began = time.monotonic()

    def show(self, num_done: int, note: str = "") -> None:
        """Print how many parts are done, and how long the others will take."""
        taken = time.monotonic() - self._began
        left = taken / max(1, num_done - self._first) * (self._total - num_done)
        line = f"{self._what}: {num_done:,} of {self._total:,}; {taken:.0f} s, {left:.0f} s to go"
        print(f"{line}; {note}" if note else line, flush=True)
