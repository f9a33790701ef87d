"""The operator of a simulated world: commands in flight, and a check of each one's only reply."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from octavo.client.engine_run import State
from octavo.client.process import ProcessEngine
from octavo.engine.commands import HANDLERS
from octavo.wire.commands import (
    BY_NAME,
    NO_ENGINE,
    TIMED_OUT,
    UNKNOWN_COMMAND,
    Command,
    Reply,
    ResetPrefixCache,
)
from tests.sim.shell.engine_side import SimEngine, SimLauncher

LONG_SECONDS = 60.0  # in which an engine without a fault replies
NOTICED_SECONDS = 1.0  # in which the end of an engine's process is noticed


class Echo(Command, frozen=True):
    """A command that these worlds alone know; its result is its argument."""

    name = "echo"
    result = str

    text: str


class Newer(Command, frozen=True):
    """A command of a front end that is newer than its engine."""

    name = "newer"


@contextmanager
def echoing() -> Iterator[None]:
    """Let engines know `Echo`, by a struct and a handler."""
    BY_NAME[Echo.name] = Echo
    HANDLERS[Echo] = lambda core, command: command.text
    try:
        yield
    finally:
        del BY_NAME[Echo.name], HANDLERS[Echo]


class Operator:
    """An operator who sends commands and checks their replies."""

    def __init__(
        self,
        target: ProcessEngine,
        launcher: SimLauncher,
        chance: random.Random,
        count: Callable[[str], None],
        *,
        num_sleeps: Callable[[], int],
        is_over: Callable[[], bool],
    ) -> None:
        self._target = target
        self._launcher = launcher
        self._random = chance
        self._count = count
        self._is_over = is_over  # the client has been closed
        self._num_sleeps = num_sleeps  # of the whole machine, in which its timers run out
        self._replies: list[asyncio.Future[Reply]] = []

    def send(self) -> None:
        """Send some commands at once."""
        for _ in range(self._random.randint(1, 4)):
            command = self._draw()
            self.give(command, self._random.choice([0.005, 0.05, LONG_SECONDS]))

    def _draw(self) -> Command:
        """Return a command that may be sent at any time."""
        command = self._random.choice([Echo(f"{len(self._replies)}"), Newer()])
        return ResetPrefixCache() if self._random.random() < 0.2 else command

    def give(self, command: Command, seconds: float = LONG_SECONDS) -> asyncio.Future[Reply]:
        """Send a command, and check its reply when it comes."""
        engine = self._launcher.engines[-1]
        had_engine = self._target.supervisor.state is State.READY
        reply = self._target.command(command, seconds)
        self._replies.append(reply)
        check = partial(self._check, command, engine, had_engine, seconds, self._num_sleeps())
        reply.add_done_callback(check)
        return reply

    async def settle(self) -> None:
        """Wait until each command has its reply."""
        if self._replies:
            await asyncio.wait(self._replies, timeout=LONG_SECONDS + 1.0)
        assert all(reply.done() for reply in self._replies), "a command has no reply"

    def _check(
        self,
        command: Command,
        engine: SimEngine,
        had_engine: bool,
        seconds: float,
        num_sleeps: int,
        future: asyncio.Future[Reply],
    ) -> None:
        """Check a reply; an AssertionError is noticed as an error in a callback."""
        reply = future.result()
        code = None if reply.error is None else reply.error.code
        self._count(f"reply: {code or 'result'}")
        is_faulty = engine.is_hung or engine.is_stopped or engine.is_mad
        if code is None:
            self._check_result(command, reply.value, engine)
            assert not isinstance(command, Newer)
        elif code == UNKNOWN_COMMAND:
            assert isinstance(command, Newer)
        elif code == NO_ENGINE:
            assert self._is_over() or not had_engine or is_faulty or engine.ended_at is not None
        elif not self._is_expected(command, code):
            assert code == TIMED_OUT, code
            now, ended_at = self._launcher.loop.time(), engine.ended_at
            if self._num_sleeps() == num_sleeps:
                is_slow = seconds < LONG_SECONDS or is_faulty or ended_at is not None
                assert is_slow, "a healthy engine has not replied"
                is_unseen = ended_at is None or now < ended_at + NOTICED_SECONDS
                assert is_unseen, "the engine has ended"

    # A subclass overrides these methods to send more commands.

    def _check_result(self, command: Command, value: object, engine: SimEngine) -> None:
        """Check what a command resulted in."""
        assert value == (command.text if isinstance(command, Echo) else None)

    def _is_expected(self, command: Command, code: str) -> bool:
        """Return whether a command may be refused with this code."""
        return False
