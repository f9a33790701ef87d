"""A further process of an engine, as the process of the first one knows it."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

from octavo import env
from octavo.core.config import ConfigError
from octavo.engine.ranks.link import Link, Started, StartRank
from octavo.wire.message_types import WireError

_EXIT_SECONDS = 2.0


def launch(
    program: str, words: Sequence[str], descriptors: Sequence[int] = ()
) -> tuple[subprocess.Popen[bytes], Link]:
    """Start a program of ours, which inherits these descriptors; return it with its connection."""
    ours, theirs = socket.socketpair()
    with theirs:
        command = [sys.executable, "-P", "-m", program, "--link", str(theirs.fileno()), *words]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno(), *descriptors],
            env=env.child_environment({"PYTHONPATH": env.child_module_path()}),
        )
    return process, Link(ours)


def describe_status(status: int) -> str:
    """Return how a process ended; `status` is its exit code, or minus the signal."""
    if status >= 0:
        return f"its process ended with exit code {status}"
    with contextlib.suppress(ValueError):
        return f"its process was ended by {signal.Signals(-status).name}"
    return f"its process was ended by signal {-status}"


class FurtherProcessError(ConfigError):
    """An error for a further process that could not start: which, and why."""

    def __init__(self, who: str, why: str) -> None:
        super().__init__(f"{who} did not start: {why}")
        self.who = who
        self.why = why


class Follower:
    """A further process of an engine: its name, and the connection to it."""

    machine = ""  # how texts name another machine, on which it is

    def __init__(self, name: str, count: int, link: Link) -> None:
        """Name a process, of so many like it."""
        self.name = name
        self.count = count
        self.link = link
        self.started = Started()  # its own message, once it has its weights

    def exit_reason(self) -> str:
        """Describe how the process ended; end it if it has not."""
        return "its connection ended"

    def start(self, message: StartRank) -> None:
        """Let the process load its share; raise OSError if it has ended."""
        self.link.send(message)

    @property
    def local_bytes(self) -> int:
        """The bytes of its weights on this machine."""
        return 0

    def wait_for_start(self) -> None:
        """Wait until the process has its weights; raise FurtherProcessError if it cannot."""
        who, why = "", ""
        try:
            started = self.link.receive(Started)
        except WireError as error:
            why = str(error)
        else:
            if started is None:
                why = self.exit_reason()
            else:
                who, why, self.started = started.who, started.failure, started
        if why:
            raise FurtherProcessError(self.machine + (who or f"{self.name} of {self.count}"), why)

    def wait_for_end(self) -> str:
        """Return when the process has ended, or cannot be counted on any more.

        What it has said of that is returned, if it has said anything.
        """
        return self.link.wait_for_end()

    def describe_end(self, said: str) -> str:
        """Return which process has ended, where, and why."""
        return self.machine + (said or f"{self.name} has ended: {self.exit_reason()}")

    def end(self) -> None:
        """Wait until the process has ended; its connection has."""


class LocalFollower(Follower):
    """A further process on this machine."""

    def __init__(self, name: str, count: int, link: Link, process: subprocess.Popen[bytes]) -> None:
        super().__init__(name, count, link)
        self.process = process

    def exit_reason(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_EXIT_SECONDS)
        status = self.process.poll()
        return super().exit_reason() if status is None else describe_status(status)

    @property
    def local_bytes(self) -> int:
        return self.started.weight_bytes

    def end(self) -> None:
        try:
            self.process.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):  # a confined process may end no others
                self.process.kill()
                self.process.wait(_EXIT_SECONDS)
