"""Which request kills engines: strikes, trials of one request at a time, and a verdict.

A request that ends an engine by a crash does so each time it comes to the same place. So whoever
was in the fatal step gets strikes, and loses them all as soon as a further token of his comes:
the place is passed. Two crashes without a token in between put a request on trial: it runs alone,
everybody else waiting, until it has given one token (and is free of suspicion) or has killed once
more (and fails, by itself, for good).

An engine ended by a SIGKILL from outside says less of who was in it, and counts half: operators
and tests kill engines that have done nothing. It still counts, since that is also how the system
ends a process for want of memory.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from octavo.client.journal import Entry

CRASH_STRIKES = 2
KILL_STRIKES = 1
TRIAL_STRIKES = 4  # as many put a request on trial
VERDICT_STRIKES = 6  # as many, the last of them when it ran alone, and it fails


class Quarantine:
    """Who is to be tried, and who is on trial."""

    def __init__(self) -> None:
        self._waiting: deque[Entry] = deque()
        self.accused: Entry | None = None  # it runs alone

    @property
    def is_trying(self) -> bool:
        """Whether everybody else has to wait."""
        return self.accused is not None or bool(self._waiting)

    def death(self, at_work: Iterable[Entry], was_killed: bool) -> Entry | None:
        """An engine has ended with these in its last step; who is condemned for it, if anybody."""
        accused, self.accused = self.accused, None
        for entry in at_work:
            if len(entry.emitted) > entry.num_at_strike:
                entry.strikes = 0
            entry.strikes += KILL_STRIKES if was_killed else CRASH_STRIKES
            entry.num_at_strike = len(entry.emitted)
            if entry.strikes < TRIAL_STRIKES or entry in self._waiting:
                continue
            if entry is accused and entry.strikes >= VERDICT_STRIKES:
                continue
            self._waiting.append(entry)
        if accused is None:
            return None
        if accused.strikes >= VERDICT_STRIKES:
            return accused
        if accused not in self._waiting:
            self._waiting.appendleft(accused)  # the engine died of something else
        return None

    def next_trial(self) -> Entry | None:
        """The next to run alone, if there is any; the engine has to be empty."""
        assert self.accused is None, "one at a time"
        self.accused = self._waiting.popleft() if self._waiting else None
        return self.accused

    def acquit(self, entry: Entry) -> bool:
        """A token of its has come, or its end: whether a trial is over with that."""
        if entry.strikes:
            entry.strikes = 0
        if entry is self.accused:
            self.accused = None
            return True
        return False

    def forget(self, entry: Entry) -> bool:
        """It has been given up: whether a trial is over with that."""
        if entry in self._waiting:
            self._waiting.remove(entry)
        return self.acquit(entry)
