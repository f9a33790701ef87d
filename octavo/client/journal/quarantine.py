"""Finds requests that crash engines: crash points, isolated runs, and in the end a failed request.

A request that crashes an engine does so every time it reaches the same position. Therefore each
request in an engine's last step gets crash points, until its next token shows that the position
was passed. After two crashes without a token in between, a request is isolated: it runs alone,
while all others wait, until it has produced one token (and is cleared) or has crashed the engine
once more (and fails, without another try). Where there are several engines, each has a quarantine
of its own: a request runs alone in the engine that ended with it, while the others have the rest.

An engine that was ended by a SIGKILL from outside counts half, because operators and tests kill
engines whose requests did nothing wrong. It still counts, because the kernel ends a process in the
same way when memory runs out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from octavo.client.journal.journal import Entry

CRASH_POINTS = 2
KILL_POINTS = 1
ISOLATION_POINTS = 4  # a request with as many is isolated
FAILURE_POINTS = 6  # a request that reaches as many while it runs alone fails


class Quarantine:
    """The request that runs alone, and those that are to run alone next."""

    def __init__(self) -> None:
        self._waiting: deque[Entry] = deque()
        self.isolated: Entry | None = None

    @property
    def is_active(self) -> bool:
        """True while requests that are not suspect must wait."""
        return self.isolated is not None or bool(self._waiting)

    def suspect(self, in_last_step: Iterable[Entry], was_killed: bool) -> Entry | None:
        """Suspect the requests in an engine's last step; return the one to fail, if any."""
        isolated, self.isolated = self.isolated, None
        for entry in in_last_step:
            if len(entry.emitted) > entry.num_tokens_at_crash:
                entry.crash_points = 0
            entry.crash_points += KILL_POINTS if was_killed else CRASH_POINTS
            entry.num_tokens_at_crash = len(entry.emitted)
            if entry.crash_points < ISOLATION_POINTS or entry in self._waiting:
                continue
            if entry is isolated and entry.crash_points >= FAILURE_POINTS:
                continue
            self._waiting.append(entry)
        if isolated is None:
            return None
        if isolated.crash_points >= FAILURE_POINTS:
            return isolated
        if isolated not in self._waiting:
            self._waiting.appendleft(isolated)  # the engine ended for another reason
        return None

    def has(self, entry: Entry) -> bool:
        """Return whether a request runs alone, or is to run alone next."""
        return entry is self.isolated or entry in self._waiting

    def release(self) -> None:
        """Let all requests run beside others, since their engine will not run again."""
        self._waiting.clear()
        self.isolated = None

    def isolate(self) -> Entry | None:
        """Return the next request to run alone, if any; the engine must be empty."""
        assert self.isolated is None, "another request is running alone"
        self.isolated = self._waiting.popleft() if self._waiting else None
        return self.isolated

    def clear(self, entry: Entry) -> bool:
        """Clear a request that has produced a token or ended; True if that ends its isolation."""
        entry.crash_points = 0
        if entry is self.isolated:
            self.isolated = None
            return True
        return False

    def forget(self, entry: Entry) -> bool:
        """Forget a request that was given up; True if that ends its isolation."""
        if entry in self._waiting:
            self._waiting.remove(entry)
        return self.clear(entry)
