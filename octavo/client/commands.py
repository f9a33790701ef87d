"""Commands that an engine has been sent: each gets exactly one reply, whatever happens.

The reply is the engine's, or an error when the engine ends, or when it takes too long. A reply that
comes later than that is ignored. All methods are called in the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from octavo.wire.commands import (
    MAX_MESSAGE,
    NO_ENGINE,
    TIMED_OUT,
    TOO_MANY,
    UNSENDABLE,
    Command,
    CommandError,
    Reply,
)
from octavo.wire.message_types import CommandReply, WireError, unpack

if TYPE_CHECKING:  # who computes without an event loop starts without asyncio
    import asyncio

COMMAND_SECONDS = 60.0  # for a reply; the engine takes commands between two steps
# For a reply to LoadFile: several files may come before it, and magnitudes (DoRA) of a large model
# take a minute or more.
LOAD_SECONDS = 600.0
MAX_IN_FLIGHT = 256


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A command without a reply."""

    command: Command
    reply: asyncio.Future[Reply]
    timer: asyncio.TimerHandle


class CommandsInFlight:
    """The commands without a reply, by their numbers."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def send(
        self, command: Command, seconds: float, write: Callable[[int, Command], None]
    ) -> asyncio.Future[Reply]:
        """Write a command with a number of its own; return its only reply.

        `write` may raise WireError if the command cannot be sent.
        """
        if len(self._waiting) >= MAX_IN_FLIGHT:
            why = f"{MAX_IN_FLIGHT} commands wait for the engine's reply already: send fewer"
            return replied(failed(TOO_MANY, why))
        loop = _running_loop()
        number, self._next_number = self._next_number, self._next_number + 1
        timer = loop.call_later(seconds, self._expire, number, seconds)
        reply: asyncio.Future[Reply] = loop.create_future()
        self._waiting[number] = _Waiting(command, reply, timer)
        try:
            write(number, command)
        except WireError as error:
            self.settle(number, failed(UNSENDABLE, str(error)))
        return reply

    def take(self, message: CommandReply) -> None:
        """Take an engine's reply; raise WireError if it is none to what was sent."""
        if message.number >= self._next_number:
            raise WireError(f"it replied to command {message.number}, which was never sent")
        waiting = self._waiting.get(message.number)
        if waiting is None:
            return  # it comes too late
        value, result = None, waiting.command.result
        if message.error is None and result is not None:
            value = unpack(message.value, result)
        self.settle(message.number, Reply(value, message.error))

    def settle(self, number: int, reply: Reply) -> None:
        """Give a command its reply, unless it has one."""
        waiting = self._waiting.pop(number, None)
        if waiting is None:
            return
        waiting.timer.cancel()
        if not waiting.reply.done():  # its caller may have been cancelled
            waiting.reply.set_result(reply)

    def fail_all(self, why: str) -> None:
        """Give each command an error, since the engine that had them has ended."""
        for number in list(self._waiting):
            self.settle(number, failed(NO_ENGINE, why))

    def forget_other_loops(self) -> None:
        """Drop the commands of event loops that have ended, with all their callers."""
        loop = _running_loop()
        for number, waiting in list(self._waiting.items()):
            if waiting.reply.get_loop() is not loop:
                waiting.timer.cancel()
                del self._waiting[number]

    def _expire(self, number: int, seconds: float) -> None:
        name = self._waiting[number].command.name
        why = f"the engine has not replied to {name} for {seconds:g} s; it may still carry it out"
        self.settle(number, failed(TIMED_OUT, why))


def joined(replies: Sequence[asyncio.Future[Reply]]) -> asyncio.Future[Reply]:
    """Return the only reply of several engines that were sent the same command."""
    whole: asyncio.Future[Reply] = _running_loop().create_future()

    def settle(_: object) -> None:
        if not whole.done() and all(reply.done() for reply in replies):
            whole.set_result(agreed([reply.result() for reply in replies]))

    for reply in replies:
        reply.add_done_callback(settle)
    return whole


def agreed(replies: Sequence[Reply]) -> Reply:
    """Return one reply for several: an error of one that did not obey, or the first result.

    An engine that is not there has no part in it, unless none is: the next one starts as if it had
    received the command.
    """
    done = [index for index, reply in enumerate(replies) if reply.error is None]
    for index, reply in enumerate(replies):
        error = reply.error
        if error is None or error.code == NO_ENGINE:
            continue
        if len(replies) == 1:
            return reply
        others = ", ".join(map(str, done)) or "none"
        why = f"engine {index}: {error.message} (engines that did it: {others})"
        return failed(error.code, why[:MAX_MESSAGE])
    return replies[done[0] if done else 0]


def failed(code: str, message: str) -> Reply:
    """Return the reply to a command that no engine has carried out."""
    return Reply(error=CommandError(code, message))


def replied(reply: Reply) -> asyncio.Future[Reply]:
    """Return a reply that is there already."""
    future: asyncio.Future[Reply] = _running_loop().create_future()
    future.set_result(reply)
    return future


def _running_loop() -> asyncio.AbstractEventLoop:
    import asyncio

    return asyncio.get_running_loop()
