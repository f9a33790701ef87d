"""The loader of one engine: started beside it, started again when it ends, ended with it.

The engine cannot start a process, so the front end keeps a loader for it. A pair of sockets
connects the two. The front end has a copy of the loader's end, which each loader inherits in turn,
so that the engine's end never changes; it says there when a loader has ended, since the engine
cannot see that. It reads nothing there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from octavo import env
from octavo.client.exit_reason import describe_exit
from octavo.loader_process.messages import LoaderEnded, printable, send_now
from octavo.observe.log import form_in_use, level_in_use

log = logging.getLogger(__name__)

LOADER_PROGRAM = "octavo.loader_process.process"
STABLE_SECONDS = 60.0  # a loader that ran for longer is replaced at once
FIRST_DELAY_SECONDS, MOST_DELAY_SECONDS = 0.1, 5.0
EXIT_SECONDS = 2.0  # for a killed process to end


class LoaderKeeper:
    """The loader's process, and those that follow it."""

    def __init__(
        self, directories: Sequence[Path], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._directories = directories
        self._clock = clock
        self.engine_end, self._loader_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._descriptor = -1  # of the process, watched by the loop
        self._timer: asyncio.TimerHandle | None = None
        self._num_failed = 0  # loaders in a row that ended soon
        self._is_closed = False
        self.popen: subprocess.Popen[bytes] | None = None
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        self._started_at = self._clock()
        command = [sys.executable, "-P", "-m", LOADER_PROGRAM]
        command += ["--socket", str(self._loader_end.fileno())]
        command += ["--log-level", str(level_in_use()), "--log-format", form_in_use()]
        for directory in self._directories:
            command += ["--directory", str(directory)]
        self.popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(self._loader_end.fileno(),),
            process_group=0,
            env=env.environment_without_secrets(),
        )

    def release_engine_end(self) -> None:
        """Close the engine's end here, once the engine has inherited it."""
        self.engine_end.close()

    def watch(self) -> None:
        """Replace loaders that end, in the running event loop."""
        self._unwatch()
        self._loop = asyncio.get_running_loop()
        if self._timer is not None:  # of a loop that has ended
            self._timer.cancel()
            self._timer = None
        if self.popen is None:
            self._restart(0.0)
            return
        try:
            self._descriptor = os.pidfd_open(self.popen.pid)
        except OSError:  # it has ended, and was waited for
            self._loop.call_soon(self._on_exit)
        else:
            self._loop.add_reader(self._descriptor, self._on_exit)

    def _unwatch(self) -> None:
        if self._descriptor >= 0:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def _on_exit(self) -> None:
        if self._is_closed or self.popen is None or self.popen.poll() is None:
            return
        self._unwatch()
        reason = describe_exit(self.popen.returncode, 0)
        self.popen = None
        try:
            send_now(self._loader_end, LoaderEnded(printable(reason)))
        except OSError:  # the engine has ended, and with it its loader
            return
        log.warning("the loader of files: %s", reason)
        is_stable = self._clock() - self._started_at > STABLE_SECONDS
        self._num_failed = 0 if is_stable else self._num_failed + 1
        self._restart(self._delay())

    def _delay(self) -> float:
        """Return the seconds to wait for the next loader: none for the first two of a row."""
        if self._num_failed <= 1:
            return 0.0
        return float(min(MOST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2 ** min(self._num_failed, 16)))

    def _restart(self, delay: float) -> None:
        assert self._loop is not None, "loaders are replaced in an event loop"
        self._timer = self._loop.call_later(delay, self._start_next)

    def _start_next(self) -> None:
        self._timer = None
        if self._is_closed:
            return
        try:
            self._start()
        except OSError as error:
            log.error("no loader of files could be started: %s", error)
            self._restart(MOST_DELAY_SECONDS)
        else:
            self.watch()

    def close(self) -> None:
        """End the loader; start no other."""
        self._is_closed = True
        self._unwatch()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.engine_end.close()
        self._loader_end.close()
        if self.popen is not None:
            if self.popen.poll() is None:
                self.popen.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # it waits in the kernel
                self.popen.wait(EXIT_SECONDS)
