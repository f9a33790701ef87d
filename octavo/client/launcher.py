"""Starts engine processes, transports frames to and from them, and reports when they end.

The front end binds one socket for its whole lifetime, in a directory that only its user can enter
or, where no file can be created, without a file; the kernel refuses other users either way. Each
engine connects under the name of its epoch. So a restart creates no file, and the frames of
an engine that has ended cannot be mistaken for its successor's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import zmq

from octavo import env
from octavo.client.client import ENGINE_PROGRAM
from octavo.client.exit_reason import describe_exit
from octavo.client.loader_keeper import LoaderKeeper
from octavo.client.processors import running_on
from octavo.client.socket_directory import SocketDirectory
from octavo.core.config import ConfigError
from octavo.observe.machine import num_killed_for_memory
from octavo.wire.channel import (
    DUMP_SIGNAL,
    HEARTBEAT_SOCKET,
    HIGH_WATER,
    WORK_SOCKET,
    identity,
    read_identity,
)
from octavo.wire.crash_record import CrashRecord
from octavo.wire.limits import MAX_FRAME_BYTES
from octavo.wire.message_types import WireError

log = logging.getLogger(__name__)

EXIT_SECONDS = 2.0  # for a killed process to end


@dataclass(frozen=True, slots=True)
class Incoming:
    """A frame, and the engine that sent it."""

    epoch: int
    is_heartbeat: bool
    data: bytes


class EngineProcess(Protocol):
    """The process of one engine."""

    def send(self, data: bytes) -> bool:
        """Send a frame; return False if it must be tried again later."""

    def watch(self, on_exit: Callable[[], None]) -> None:
        """Call `on_exit` in the running event loop when the process has ended."""

    def dump_stacks(self) -> None:
        """Make the process log the stacks of all its threads."""

    def kill(self) -> None:
        """End the process at once."""

    def exit_reason(self) -> str | None:
        """Describe how the process ended; return None if it runs."""

    def was_killed(self) -> bool:
        """Return whether it was ended by a SIGKILL that did not come from `kill`."""

    def last_step(self) -> tuple[int, ...]:
        """Return the numbers of the requests in its last step."""

    def close(self) -> None:
        """End the process if it runs, and release what belongs to it; do not wait for ever."""


class Launcher(Protocol):
    """A way to start engines and to receive their frames."""

    def launch(self, epoch: int) -> EngineProcess:
        """Start an engine process."""

    def receive(self) -> Incoming | None:
        """Return the next frame of any engine, if there is one."""

    def wait(self, seconds: float) -> None:
        """Block until there may be a frame; for use outside of an event loop."""

    def attach(self, on_frame: Callable[[], None]) -> None:
        """Call `on_frame` in the running event loop whenever there may be frames."""

    def close(self) -> None:
        """Close the socket and remove its directory."""


class FrameSocket:
    """The socket to which engines connect, from one launch to the last."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        self._socket = socket = self._context.socket(zmq.ROUTER)
        self._loop: asyncio.AbstractEventLoop | None = None
        socket.set(zmq.ROUTER_MANDATORY, 1)  # a frame that cannot be sent is an error, not dropped
        socket.set(zmq.SNDHWM, HIGH_WATER)
        socket.set(zmq.RCVHWM, HIGH_WATER)
        socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
        socket.set(zmq.LINGER, 0)

    def receive(self) -> Incoming | None:
        while True:
            try:
                name, data = self._socket.recv_multipart(zmq.NOBLOCK)
                kind, epoch = read_identity(name)
            except zmq.Again:
                return None
            except (WireError, ValueError):  # not an engine's socket, or not two parts
                continue
            return Incoming(epoch, kind == HEARTBEAT_SOCKET, data)

    def wait(self, seconds: float) -> None:
        self._socket.poll(max(1, int(seconds * 1000)))

    def attach(self, on_frame: Callable[[], None]) -> None:
        self._detach()
        # The descriptor signals only changes: the callback must read until nothing is left, and
        # the client must read again after sending. Its timer does so too, a few times a second.
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), on_frame)

    def _detach(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._socket.fileno())
        self._loop = None

    def close(self) -> None:
        """Close the socket, and end what it has not sent."""
        self._detach()
        self._socket.close(linger=0)
        self._context.term()


def send_to(socket: zmq.Socket[bytes], name: bytes, data: bytes) -> bool:
    """Send a frame to an engine; return False if it must be tried again later."""
    try:
        socket.send_multipart((name, data), zmq.NOBLOCK)
    except zmq.Again:
        return False
    except zmq.ZMQError as error:
        if error.errno != zmq.EHOSTUNREACH:
            raise
        return False  # it has ended, as the client will notice
    return True


class ProcessLauncher(FrameSocket):
    """A launcher of child processes, which run as the same user."""

    def __init__(
        self,
        factory: str | None = None,
        directories: Sequence[Path] = (),
        processors: Sequence[int] = (),
    ) -> None:
        self._factory = factory  # MODULE:FUNCTION, for tests
        self._processors = processors  # on which engines run; none: on all
        self._directories = tuple(directories)  # whose files engines may load; none: no loader
        for directory in self._directories:
            if not directory.is_dir():
                raise ConfigError(
                    f"{directory} is no directory, so no files can be loaded from it: make it, or "
                    "leave it out"
                )
        self._directory: SocketDirectory | None = None  # None: no directory can be used
        self.address = f"@octavo-engine-{secrets.token_hex(16)}"  # without a file
        super().__init__()
        try:
            self._bind()
        except BaseException:
            self.close()
            raise

    def _bind(self) -> None:
        socket = self._socket
        socket.set(zmq.IPC_FILTER_UID, os.getuid())  # the kernel checks the peer's user
        try:
            self._directory = SocketDirectory()
            socket.bind(f"ipc://{self._directory.socket}")
            self._directory.socket.chmod(0o600)
            self.address = str(self._directory.socket)
        except (OSError, zmq.ZMQError) as error:  # the disk is full or may not be written to
            log.warning("the engine's socket gets no file: %s", error)
            self._close_directory()
            socket.bind(f"ipc://{self.address}")

    def launch(self, epoch: int) -> EngineProcess:
        descriptor = CrashRecord.make()
        keeper = None
        try:
            passed = [descriptor]
            if self._directories:
                keeper = LoaderKeeper(self._directories)
                passed.append(keeper.engine_end.fileno())
            with running_on(self._processors):
                popen = subprocess.Popen(
                    self._command(epoch, *passed),
                    stdin=subprocess.DEVNULL,
                    pass_fds=passed,
                    process_group=0,
                    env=env.child_environment({"PYTHONPATH": env.child_module_path()}),
                )
            record = CrashRecord(descriptor)
        except BaseException:
            if keeper is not None:
                keeper.close()
            raise
        finally:
            os.close(descriptor)
        if keeper is not None:
            keeper.release_engine_end()
        return ChildProcess(popen, record, self._socket, epoch, keeper)

    def _command(self, epoch: int, descriptor: int, loader: int | None = None) -> list[str]:
        command = [sys.executable, "-P", "-m", ENGINE_PROGRAM, "--socket", f"ipc://{self.address}"]
        command += ["--epoch", str(epoch), "--parent", str(os.getpid())]
        command += ["--crash-record", str(descriptor)]
        if loader is not None:
            command += ["--loader", str(loader)]
        if threading.current_thread() is threading.main_thread():
            command.append("--dies-with-thread")
        if self._factory is not None:
            command += ["--factory", self._factory]
        return command

    def close(self) -> None:
        super().close()
        self._close_directory()

    def _close_directory(self) -> None:
        if self._directory is not None:
            self._directory.close()
            self._directory = None


class ChildProcess:
    """An engine that runs as a child process."""

    def __init__(
        self,
        popen: subprocess.Popen[bytes],
        record: CrashRecord,
        socket: zmq.Socket[bytes],
        epoch: int,
        loader: LoaderKeeper | None = None,
    ) -> None:
        self.popen = popen
        self.loader = loader
        self._record = record
        self._socket = socket
        self._name = identity(WORK_SOCKET, epoch)
        self._is_killed_by_us = False
        self._num_killed_before = num_killed_for_memory()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._descriptor = -1

    def watch(self, on_exit: Callable[[], None]) -> None:
        self._unwatch()
        if self.loader is not None:
            self.loader.watch()
        with contextlib.suppress(OSError):  # ended already: the client's timer will notice
            self._descriptor = os.pidfd_open(self.popen.pid)
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._descriptor, on_exit)

    def _unwatch(self) -> None:
        if self._descriptor >= 0:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def send(self, data: bytes) -> bool:
        return send_to(self._socket, self._name, data)

    def dump_stacks(self) -> None:
        self.popen.send_signal(DUMP_SIGNAL)

    def kill(self) -> None:
        if self.popen.poll() is None:
            self._is_killed_by_us = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)

    def exit_reason(self) -> str | None:
        status = self.popen.poll()
        if status is None:
            return None
        return describe_exit(status, num_killed_for_memory() - self._num_killed_before)

    def was_killed(self) -> bool:
        return self.popen.returncode == -signal.SIGKILL and not self._is_killed_by_us

    def last_step(self) -> tuple[int, ...]:
        return self._record.read()

    def close(self) -> None:
        self._unwatch()
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it waits in the kernel
            self.popen.wait(EXIT_SECONDS)
        if self.loader is not None:
            self.loader.close()
        self._record.close()
