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

from octavo.zmtp.allowance import Allowance
from octavo.zmtp.connection import Connection, EndedError
from octavo.zmtp.dialer import Dialer
from octavo.zmtp.endpoint import accept, listen
from octavo.zmtp.parser import Bounds, BrokenError, Message

log = logging.getLogger(__name__)

MOST_CALLERS = 64  # of one endpoint
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
        self._dialer = None if listens else Dialer(endpoint, clock)
        self.allowance = Allowance(clock)  # of all callers together
        self._next_warning = clock()
        self.callers: list[Caller] = []

    def look(self) -> float | None:
        """Call the other end if it is time; return after how many seconds to look again."""
        for each in [*self.callers]:
            self._guard(each, lambda one: one.connection.look(is_read=True))
        if self._dialer is not None and not self.callers:
            found = self._dialer.dial()
            if found is not None:
                self._add(found)
        waits = self._dialer is not None and not self.callers
        is_idle = not waits and all(each.connection.is_ready for each in self.callers)
        rest = self.allowance.rest()
        if rest > 0:
            return rest
        return None if is_idle else LOOK_SECONDS

    def _add(self, found: socket.socket) -> None:
        self.callers.append(Caller(Connection(found, self._bounds, self._clock, beats=False)))

    def wanted(self) -> Iterator[tuple[int, int, Caller | None]]:
        """Yield each descriptor to wait at, with its events and its caller; None: the listener."""
        may_read = self.allowance.rest() <= 0
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
        found = None if self._listener is None else accept(self._listener)
        if found is not None and len(self.callers) < MOST_CALLERS:
            self._add(found)
        elif found is not None:
            found.close()
            self._warn(f"a caller is refused: there are {len(self.callers)}")

    def read(self, caller: Caller) -> list[Message]:
        """Return the messages of one portion of what a caller sends."""
        found: list[Message] = []
        self._guard(caller, lambda one: found.extend(one.connection.read()))
        if self._dialer is not None and caller.connection.is_ready:
            self._dialer.succeeded()
        return found

    def write(self, caller: Caller) -> None:
        """Send a caller what the system takes."""
        self._guard(caller, lambda one: one.connection.write())

    def end(self, caller: Caller, why: str) -> None:
        """End the connection of a caller that has broken a bound."""
        if caller in self.callers:
            self._warn(f"a connection is ended: {why}")
            self._drop(caller, is_broken=True)

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

    def _drop(self, caller: Caller, *, is_broken: bool = False) -> None:
        if caller in self.callers:
            self.callers.remove(caller)
            caller.connection.close()
            if self._dialer is not None:
                self._dialer.postpone(is_long=is_broken)

    def close(self) -> None:
        """Close all connections, and listen no more."""
        for each in self.callers:
            each.connection.close()
        self.callers.clear()
        if self._listener is not None:
            self._listener.close()
