"""The agent of an engine: starts its process on the agent's machine, and says how it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import NamedTuple

from octavo import env
from octavo.client.client import ENGINE_PROGRAM
from octavo.client.exit_reason import describe_exit
from octavo.observe.machine import num_killed_for_memory
from octavo.wire.channel import DUMP_SIGNAL
from octavo.wire.crash_record import CrashRecord


class Ended(NamedTuple):
    """The end of an engine's process."""

    reason: str
    was_killed: bool  # by a SIGKILL
    last_step: tuple[int, ...]  # the numbers of the requests in it


class Agent:
    """The keeper of one process, which ends with the agent's."""

    def __init__(self, address: str, epoch: int, secret: bytes, factory: str | None = None) -> None:
        num_killed = num_killed_for_memory()
        descriptor = CrashRecord.make()
        reading, writing = os.pipe()
        command = [sys.executable, "-P", "-m", ENGINE_PROGRAM, "--socket", address]
        command += ["--epoch", str(epoch), "--parent", str(os.getpid())]
        command += ["--crash-record", str(descriptor), "--secret", str(reading)]
        if factory is not None:
            command += ["--factory", factory]
        try:
            os.write(writing, secret)  # less than a pipe holds
            os.close(writing)
            self._popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                pass_fds=[descriptor, reading],
                process_group=0,
                env=env.child_environment({"PYTHONPATH": env.child_module_path()}),
            )
            self._record = CrashRecord(descriptor)
        finally:
            os.close(descriptor)
            os.close(reading)
        self._num_killed_before = num_killed

    def run(self) -> Ended:
        """Wait for the end of the process, and return it."""
        status = self._popen.wait()
        num_killed = num_killed_for_memory() - self._num_killed_before
        return Ended(
            describe_exit(status, num_killed), status == -signal.SIGKILL, self._record.read()
        )

    def dump_stacks(self) -> None:
        """Make the process log the stacks of all its threads."""
        self._popen.send_signal(DUMP_SIGNAL)

    def kill(self) -> None:
        """End the process at once."""
        if self._popen.poll() is None:
            os.killpg(self._popen.pid, signal.SIGKILL)
