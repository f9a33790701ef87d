"""Starts engine processes, carries frames to and from them, and sees them end.

The front end binds one socket for all its life, in a directory that only its user can enter;
each engine connects to it under the name of its epoch. So a restart makes no file, and frames of
an engine that is gone cannot be taken for its successor's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import zmq

from octavo import env
from octavo.client.socket_directory import SocketDirectory
from octavo.wire.channel import (
    DUMP_SIGNAL,
    HIGH_WATER,
    PULSE_SOCKET,
    WORK_SOCKET,
    identity,
    read_identity,
)
from octavo.wire.crash_record import CrashRecord
from octavo.wire.message_types import MAX_FRAME_BYTES, WireError


@dataclass(frozen=True, slots=True)
class Incoming:
    """A frame, and which engine sent it."""

    epoch: int
    is_pulse: bool
    data: bytes


class EngineProcess(Protocol):
    """One engine's process."""

    def send(self, data: bytes) -> bool:
        """Hand a frame over; False if it must be tried again later."""

    def watch(self, on_end: Callable[[], None]) -> None:
        """Call this in the running event loop when the process has ended."""

    def dump(self) -> None:
        """Have the stacks of all its threads written to the log."""

    def kill(self) -> None:
        """End the process now."""

    def ending(self) -> str | None:
        """How the process ended; None if it runs."""

    def was_killed(self) -> bool:
        """Whether somebody else killed it: SIGKILL, and not from us."""

    def at_work(self) -> tuple[int, ...]:
        """The numbers of the requests in the step that was its last."""

    def close(self) -> None:
        """Let go of an engine that has ended."""


class Launcher(Protocol):
    """Where engines come from."""

    def launch(self, epoch: int) -> EngineProcess:
        """Start an engine."""

    def receive(self) -> Incoming | None:
        """The next frame of any engine, if there is one."""

    def wait(self, seconds: float) -> None:
        """Outside of any event loop: until there may be a frame."""

    def attach(self, on_frame: Callable[[], None]) -> None:
        """From now on call this in the running event loop when there may be frames."""

    def close(self) -> None:
        """Let go of the socket."""


class ProcessLauncher:
    """Engines as processes of this machine, under this user."""

    def __init__(self, factory: str | None = None) -> None:
        self._factory = factory  # MODULE:FUNCTION, for tests
        self._directory = SocketDirectory()
        self.path = self._directory.socket
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = self._context.socket(zmq.ROUTER)
        self._loop: asyncio.AbstractEventLoop | None = None
        try:
            self._bind()
        except BaseException:
            self.close()
            raise

    def _bind(self) -> None:
        socket = self._socket
        socket.set(zmq.ROUTER_MANDATORY, 1)  # a frame that cannot be sent is told, not dropped
        socket.set(zmq.SNDHWM, HIGH_WATER)
        socket.set(zmq.RCVHWM, HIGH_WATER)
        socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.set(zmq.LINGER, 0)
        socket.set(zmq.IPC_FILTER_UID, os.getuid())  # the kernel says who connects
        socket.bind(f"ipc://{self.path}")
        self.path.chmod(0o600)

    def launch(self, epoch: int) -> EngineProcess:
        descriptor = CrashRecord.make()
        try:
            process = subprocess.Popen(
                self._command(epoch, descriptor),
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor,),
                process_group=0,
                env=env.child_environment({"PYTHONPATH": _module_path()}),
            )
            box = CrashRecord(descriptor)
        finally:
            os.close(descriptor)
        return ProcessEngine(process, box, self._socket, epoch)

    def _command(self, epoch: int, descriptor: int) -> list[str]:
        command = [sys.executable, "-P", "-m", "octavo.engine.process", "--socket", str(self.path)]
        command += ["--epoch", str(epoch), "--parent", str(os.getpid())]
        command += ["--crash-record", str(descriptor)]
        if threading.current_thread() is threading.main_thread():
            command.append("--dies-with-thread")
        if self._factory is not None:
            command += ["--factory", self._factory]
        return command

    def receive(self) -> Incoming | None:
        while True:
            try:
                name, data = self._socket.recv_multipart(zmq.NOBLOCK)
                kind, epoch = read_identity(name)
            except zmq.Again:
                return None
            except (WireError, ValueError):  # a stranger of our own user's; or not two parts
                continue
            return Incoming(epoch, kind == PULSE_SOCKET, data)

    def wait(self, seconds: float) -> None:
        self._socket.poll(max(1, int(seconds * 1000)))

    def attach(self, on_frame: Callable[[], None]) -> None:
        self._detach()
        # The descriptor tells of changes only: whoever is called must read until nothing is left,
        # and look again after sending. The client's timer does so too, a few times a second.
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), on_frame)

    def _detach(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
        self._loop = None

    def close(self) -> None:
        self._detach()
        self._socket.close(linger=0)
        self._context.term()
        self._directory.close()


class ProcessEngine:
    """One process, from its start until it has been buried."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        box: CrashRecord,
        socket: zmq.Socket[bytes],
        epoch: int,
    ) -> None:
        self.process = process
        self._box = box
        self._socket = socket
        self._name = identity(WORK_SOCKET, epoch)
        self._we_killed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._descriptor = -1

    def watch(self, on_end: Callable[[], None]) -> None:
        self._unwatch()
        with contextlib.suppress(OSError):  # gone already: the client's timer will see it
            self._descriptor = os.pidfd_open(self.process.pid)
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._descriptor, on_end)

    def _unwatch(self) -> None:
        if self._descriptor >= 0:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def send(self, data: bytes) -> bool:
        try:
            self._socket.send_multipart((self._name, data), zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            return False  # it has gone, which the client will hear
        return True

    def dump(self) -> None:
        self.process.send_signal(DUMP_SIGNAL)

    def kill(self) -> None:
        if self.process.poll() is None:
            self._we_killed = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def ending(self) -> str | None:
        status = self.process.poll()
        if status is None:
            return None
        if status >= 0:
            return f"its process ended with exit code {status}"
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = str(-status)
        return f"its process was ended by {name}"

    def was_killed(self) -> bool:
        return self.process.returncode == -signal.SIGKILL and not self._we_killed

    def at_work(self) -> tuple[int, ...]:
        return self._box.read()

    def close(self) -> None:
        self._unwatch()
        self.kill()
        self.process.wait()
        self._box.close()


def _module_path() -> str:
    """Where the engine finds this very package, and what the user has put there."""
    home = Path(__file__).parents[2]
    given = env.module_path()
    if home.name in ("site-packages", "dist-packages"):
        return given
    return os.pathsep.join([str(home), given] if given else [str(home)])
