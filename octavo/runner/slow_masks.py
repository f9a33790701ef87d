"""The bound on what slow masks take from the texts beside them: time, and memory.

A usual mask takes less than a millisecond. One that takes longer than `SLOW_SECONDS` delays a whole
step, and a few such texts would delay every step. So all slow masks together may take a part of the
time; when that is spent, texts whose masks are slow fail, unless they are alone.

The states of a lexer take time when they are made, and memory from then on. So both are drawn from
one account: memory counts as the time in which it would fill all that grammars may take. The heap
also grows while other threads compile grammars: of its growth, only so much is a mask's as can be
written in the mask's own time.
"""

from __future__ import annotations

SLOW_SECONDS = 0.005  # of one mask, with the memory that it has taken
USUAL_SECONDS = 0.0005  # that a mask takes at most, as a rule
SHARE = 0.05  # of the time, for slow masks
MOST_SECONDS = 0.05  # that may be saved for later
FILLING_SECONDS = 1.0  # that all the memory of grammars counts as
MOST_BYTES_A_SECOND = 1 << 30  # by which a mask makes the heap grow


def cost(seconds: float, grown_bytes: int, limit_bytes: int) -> float:
    """Return what masks cost, as seconds."""
    own_bytes = min(max(0, grown_bytes), MOST_BYTES_A_SECOND * seconds)
    return seconds + FILLING_SECONDS * own_bytes / limit_bytes


class SlowMasks:
    """An account of time: it fills steadily, and slow masks draw on it."""

    def __init__(self, now: float) -> None:
        self._seconds = MOST_SECONDS
        self._now = now

    def is_spent(self, now: float) -> bool:
        """Return whether no time is left for slow masks."""
        self._seconds = min(MOST_SECONDS, self._seconds + SHARE * (now - self._now))
        self._now = now
        return self._seconds <= 0.0

    def spend(self, seconds: float) -> bool:
        """Take the cost of a mask if it was slow; return whether it was."""
        if seconds <= SLOW_SECONDS:
            return False
        self._seconds -= seconds
        return True
