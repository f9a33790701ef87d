"""One connection of ZMTP over a socket that never waits; what waits to be sent is counted."""

from __future__ import annotations

import select
import socket
from collections import deque
from collections.abc import Callable

from octavo.zmtp.parser import (
    Bounds,
    BrokenError,
    Message,
    Parser,
    command,
    greeting,
    subscription,
)

READ_BYTES = 1 << 16
MOST_REPLY_BYTES = 1 << 14  # answers to questions whether this end lives, which it does not take
HANDSHAKE_SECONDS = 10.0
BEAT_SECONDS, SILENT_SECONDS = 2.0, 6.0  # of a connection, whose end is seen after the second
_PING = command(b"\4PING" + int(SILENT_SECONDS * 10).to_bytes(2, "big"))


class EndedError(Exception):
    """The other end, or the network, has ended the connection."""


class Connection:
    """The messages of one socket, which is connected or about to be."""

    def __init__(
        self, given: socket.socket, bounds: Bounds, clock: Callable[[], float], *, beats: bool
    ) -> None:
        self.socket = given
        self._parser = Parser(bounds)
        self._clock = clock
        self._beats = beats  # whether it asks if the other end lives
        self._began = self._heard = self._asked = clock()
        self._waiting: deque[tuple[bytes, ...]] = deque()
        self._now: deque[memoryview] = deque()  # the rest of what is being sent
        self.waiting_bytes = 0
        self._urgent = bytearray(greeting(bounds.kind))

    @property
    def is_ready(self) -> bool:
        """Return whether the other end is known to be one to speak with."""
        return self._parser.is_ready

    @property
    def num_waiting(self) -> int:
        """Return how many messages wait to be sent, without the one that is being sent."""
        return len(self._waiting)

    @property
    def wants_write(self) -> bool:
        """Return whether there is something to send now."""
        return bool(self._now or self._urgent or (self._waiting and self.is_ready))

    def read(self) -> list[Message]:
        """Return the messages that have come, of one portion of bytes."""
        try:
            data = self.socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:
            raise EndedError(str(error)) from None
        if not data:
            raise EndedError("the other end has closed it")
        self._heard = self._clock()
        found = self._parser.feed(data)
        self._urgent += self._parser.replies
        self._parser.replies.clear()
        if len(self._urgent) > MOST_REPLY_BYTES:
            raise BrokenError("it asks whether this end lives, and takes no answer")
        return found

    def subscribe(self, topic: bytes) -> None:
        """Ask for a topic, in the form of the other end's version, once `is_ready`."""
        self.send(subscription(topic, is_command=self._parser.takes_commands))

    def send(self, message: tuple[bytes, ...]) -> None:
        """Add a message, as `frames` makes it, to those that wait."""
        self._waiting.append(message)
        self.waiting_bytes += sum(map(len, message))

    def write(self) -> None:
        """Send what the system takes."""
        while self.wants_write:
            if not self._now:
                self._next()
            try:
                sent = self.socket.send(self._now[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                raise EndedError(str(error)) from None
            rest = self._now[0][sent:]
            if rest:
                self._now[0] = rest
            else:
                self._now.popleft()

    def _next(self) -> None:
        if self._urgent:
            self._now.append(memoryview(bytes(self._urgent)))
            self._urgent.clear()
            return
        message = self._waiting.popleft()
        self.waiting_bytes -= sum(map(len, message))
        self._now.extend(memoryview(each) for each in message if each)

    def look(self, *, is_read: bool) -> None:
        """End a connection whose other end is silent; one that is not read now cannot be."""
        now = self._clock()
        if not self.is_ready:
            if now - self._began > HANDSHAKE_SECONDS:
                raise EndedError("its handshake does not end")
            return
        if not (self._beats and self._parser.takes_commands):
            return  # versions before 3.1 know no such question
        if not is_read:
            self._heard = now
        if now - self._heard > SILENT_SECONDS and self._asked > self._heard:
            if self._has_unread():  # this process was late, not the other end
                return
            raise EndedError(f"nothing came for {SILENT_SECONDS:.0f} s")
        if now - max(self._heard, self._asked) > BEAT_SECONDS:
            self._asked = now
            self._urgent += _PING

    def _has_unread(self) -> bool:
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return any(what & select.POLLIN for _, what in poll.poll(0))

    def close(self) -> None:
        self.socket.close()
