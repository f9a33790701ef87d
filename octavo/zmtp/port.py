"""The connections of one endpoint, at which it listens or which it calls, and their bounds.

A caller beyond the most is refused, one whose handshake does not end is given up, and one that
breaks the protocol or a bound loses its connection. All that callers send is read in a part of the
time, so that nothing that they send keeps the rest of the process waiting.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from octavo.zmtp.connection import Connection, EndedError
from octavo.zmtp.endpoint import accept, dial, listen
from octavo.zmtp.link import FIRST_PAUSE_SECONDS, LAST_PAUSE_SECONDS
from octavo.zmtp.parser import Bounds, BrokenError, Message

log = logging.getLogger(__name__)

MOST_CALLERS = 64  # of one endpoint
SHARE = 8  # what callers send is read in one second of so many, and in more for a moment
MOMENT_SECONDS = 0.1
WARNING_SECONDS = 5.0
LOOK_SECONDS = 0.5  # between two looks whether a handshake has ended


@dataclass(slots=True, eq=False)
class Caller:
    """One connection, with what the other end has asked for."""

    connection: Connection
    topics: set[bytes] = field(default_factory=set)
    questions: deque[tuple[int, int]] = field(default_factory=deque)  # first number, and end


class Port:
    """The connections of one endpoint, in one thread."""

    def __init__(
        self,
        endpoint: str,
        bounds: Bounds,
        *,
        listens: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._endpoint, self._bounds, self._clock = endpoint, bounds, clock
        self._listener = listen(endpoint) if listens else None
        self._next_try, self._pause, self._attempt = clock(), FIRST_PAUSE_SECONDS, 0
        self._paid_until = 0.0
        self._next_warning = clock()
        self.callers: list[Caller] = []

    def rest(self) -> float:
        """Return for how many seconds nothing is read, since it has taken its part of the time."""
        return self._paid_until - MOMENT_SECONDS - self._clock()

    def took(self, began: float) -> None:
        """Count the time since `began` as one that callers have taken."""
        now = self._clock()
        self._paid_until = max(self._paid_until, began) + SHARE * (now - began)

    def look(self) -> float | None:
        """Call the other end if it is time; return after how many seconds to look again."""
        for each in [*self.callers]:
            self._guard(each, lambda one: one.connection.look(is_read=True))
        if self._listener is None and not self.callers and self._clock() >= self._next_try:
            self._call()
        waits = self._listener is None and not self.callers
        is_idle = not waits and all(each.connection.is_ready for each in self.callers)
        rest = self.rest()
        if rest > 0:
            return rest
        return None if is_idle else LOOK_SECONDS

    def _call(self) -> None:
        self._next_try = self._clock() + self._pause
        self._pause = min(2 * self._pause, LAST_PAUSE_SECONDS)
        self._attempt += 1
        try:
            found = dial(self._endpoint, self._attempt - 1)
        except OSError:  # the name is not found, or nothing listens: both may come later
            return
        self._add(found)

    def _add(self, found: socket.socket) -> None:
        self.callers.append(Caller(Connection(found, self._bounds, self._clock, beats=False)))

    def wanted(self) -> Iterator[tuple[int, int, Caller | None]]:
        """Yield each descriptor to wait at, with its events and its caller; None: the listener."""
        may_read = self.rest() <= 0
        if self._listener is not None and may_read:
            yield self._listener.fileno(), select.POLLIN, None
        for each in self.callers:
            reads = may_read and not each.questions
            events = select.POLLIN if reads else 0
            if each.connection.wants_write or (may_read and each.questions):
                events |= select.POLLOUT
            if events:
                yield each.connection.socket.fileno(), events, each

    def accept(self) -> None:
        """Take the next caller, or refuse it if there are too many."""
        began = self._clock()
        found = None if self._listener is None else accept(self._listener)
        if found is not None and len(self.callers) < MOST_CALLERS:
            self._add(found)
        elif found is not None:
            found.close()
            self._warn(f"a caller is refused: there are {len(self.callers)}")
        self.took(began)

    def read(self, caller: Caller) -> list[Message]:
        """Return the messages of one portion of what a caller sends."""
        found: list[Message] = []
        self._guard(caller, lambda one: found.extend(one.connection.read()))
        if caller.connection.is_ready:
            self._pause = FIRST_PAUSE_SECONDS
        return found

    def write(self, caller: Caller) -> None:
        """Send a caller what the system takes."""
        self._guard(caller, lambda one: one.connection.write())

    def end(self, caller: Caller, why: str) -> None:
        """End the connection of a caller that has broken a bound."""
        if caller in self.callers:
            self._warn(f"a connection is ended: {why}")
            self._pause = LAST_PAUSE_SECONDS
            self._drop(caller)

    def _guard(self, caller: Caller, work: Callable[[Caller], None]) -> None:
        try:
            work(caller)
        except EndedError:
            self._drop(caller)
        except BrokenError as error:
            self.end(caller, str(error))

    def _warn(self, what: str) -> None:
        """Write a line, of which callers cannot cause more than one in some seconds."""
        if self._clock() >= self._next_warning:
            self._next_warning = self._clock() + WARNING_SECONDS
            log.warning("%s: %s", self._endpoint, what)

    def _drop(self, caller: Caller) -> None:
        if caller in self.callers:
            self.callers.remove(caller)
            caller.connection.close()
            self._next_try = self._clock() + self._pause

    def close(self) -> None:
        """Close all connections, and listen no more."""
        for each in self.callers:
            each.connection.close()
        self.callers.clear()
        if self._listener is not None:
            self._listener.close()
