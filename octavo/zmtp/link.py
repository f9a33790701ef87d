"""A connection to an endpoint that is made again when it ends, each time after a longer pause."""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from enum import Enum, auto

from octavo.zmtp.connection import Connection, EndedError
from octavo.zmtp.dialer import Dialer
from octavo.zmtp.parser import Bounds, BrokenError, Message


class Change(Enum):
    """A change of a connection: it can be used, or has ended."""

    READY = auto()
    ENDED = auto()
    BROKEN = auto()  # ended, since the other end has broken the protocol or a bound


class Link:
    """The connection to one endpoint, of which `changed` hears when it is ready or has ended."""

    def __init__(
        self,
        endpoint: str,
        bounds: Bounds,
        clock: Callable[[], float],
        changed: Callable[[Change, str], None],
        *,
        subscribes: bool = False,
    ) -> None:
        self._bounds, self._clock = bounds, clock
        self._changed = changed
        self._subscribes = subscribes  # each connection, to all topics
        self._dialer = Dialer(endpoint, clock)
        self._connection: Connection | None = None
        self._was_ready = False
        self._waiting: deque[tuple[bytes, ...]] = deque()  # until there is a connection

    @property
    def socket(self) -> socket.socket | None:
        """Return the socket of the connection, if there is one or one begins."""
        return None if self._connection is None else self._connection.socket

    @property
    def wants_write(self) -> bool:
        """Return whether there is something to send now."""
        return self._connection is not None and self._connection.wants_write

    def look(self, *, is_read: bool = True) -> None:
        """Begin a connection when it is time, and end one whose other end is silent."""
        if self._connection is not None:
            self._guard(lambda each: each.look(is_read=is_read))
            return
        found = self._dialer.dial()
        if found is not None:
            self._connection = Connection(found, self._bounds, self._clock, beats=True)

    def send(self, message: tuple[bytes, ...], most: int) -> bool:
        """Send a message, now or when there is a connection; return whether there was room."""
        ready = self._connection if self._was_ready else None
        waiting = len(self._waiting) if ready is None else ready.num_waiting
        if waiting >= most:
            return False
        if ready is None:
            self._waiting.append(message)
        else:
            ready.send(message)
        return True

    def read(self) -> list[Message]:
        """Return the messages of one portion of bytes; none if the connection has ended."""
        found: list[Message] = []
        self._guard(lambda each: found.extend(each.read()))
        ready = self._connection
        if ready is not None and ready.is_ready and not self._was_ready:
            self._was_ready = True
            self._dialer.succeeded()
            if self._subscribes:
                ready.subscribe(b"")
            while self._waiting:
                ready.send(self._waiting.popleft())
            self._changed(Change.READY, "")
        return found

    def write(self) -> None:
        """Send what the system takes."""
        self._guard(Connection.write)

    def _guard(self, work: Callable[[Connection], None]) -> None:
        if self._connection is None:
            return
        try:
            work(self._connection)
        except EndedError as error:
            self._end(Change.ENDED, str(error))
        except BrokenError as error:
            self._end(Change.BROKEN, str(error))

    def _end(self, change: Change, why: str) -> None:
        was_ready = self._was_ready
        self.close()
        # One that breaks the protocol at once is called as seldom as one that is not there.
        self._dialer.postpone(is_long=change is Change.BROKEN)
        if was_ready or change is Change.BROKEN:
            self._changed(change, why)

    def close(self) -> None:
        """End the connection; `look` would begin another."""
        if self._connection is not None:
            self._connection.close()
        self._connection, self._was_ready = None, False
