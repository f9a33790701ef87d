"""Keeps standard output and standard error from blocking a server, or from ending it.

Between a descriptor and where it leads stands a relay: a pipe whose writers never wait, and a
thread that reads it and writes what the other side takes. Lines that find no room are dropped and
counted. Child processes inherit the pipe, and native code writes to it too.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import math
import os
import select
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import NoReturn, TextIO

STDOUT, STDERR = 1, 2
MAX_WAITING_BYTES = 1 << 20  # of one stream, while its reader stalls
CLOSE_SECONDS = 1.0  # for what waits to be written at the end, as long as nothing moves
_PIPE_BYTES = 1 << 18
_MAX_LINE_BYTES = 1 << 16  # what is longer counts as several lines
# A pipe or terminal that reports room takes as much without waiting.
_WRITE_BYTES = 4096

_relays: list[Relay] = []  # at most one


def num_dropped_lines() -> int:
    """Return how many lines of output this server has dropped since its start."""
    return _relays[0].num_dropped if _relays else 0


@contextlib.contextmanager
def output_never_blocks() -> Iterator[None]:
    """Relay standard output and standard error, for this process and the children it starts."""
    if _relays:
        yield
        return
    relay = Relay()
    _relays.append(relay)
    try:
        yield
    finally:
        relay.close()
        _relays.remove(relay)


def never_wait_for_stderr() -> None:
    """Drop what standard error does not take, in a process that inherited it.

    A relay's pipe is ready for that. Any other pipe is opened once more, since its mode belongs to
    the parent too.
    """
    with contextlib.suppress(OSError):
        if os.get_blocking(STDERR) and stat.S_ISFIFO(os.fstat(STDERR).st_mode):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            ours = os.open(f"/proc/self/fd/{STDERR}", flags)
            os.dup2(ours, STDERR)
            os.close(ours)
    sys.stderr = _text_stream(DroppingFile(STDERR, reports=True))


class DroppingFile(io.RawIOBase):
    """A descriptor to which every write succeeds; what it does not take is dropped."""

    def __init__(self, descriptor: int, *, reports: bool = False) -> None:
        self._descriptor = descriptor
        self._reports = reports  # how many lines were dropped, before the next one
        self._num_reported = 0
        self._ends_in_line = False  # a part of the last line was dropped
        self.num_dropped = 0  # writes, each of them a line in a log

    def write(self, data: bytes | bytearray | memoryview) -> int:  # type: ignore[override]
        size = len(data)
        try:
            if self._ends_in_line:
                os.write(self._descriptor, b"\n")
                self._ends_in_line = False
            if self._reports and self.num_dropped > self._num_reported:
                os.write(self._descriptor, _report(self.num_dropped))
                self._num_reported = self.num_dropped
            num_sent = os.write(self._descriptor, data)
        except OSError:  # it is full, or its reader is gone
            self.num_dropped += 1
            return size
        if num_sent < size:
            self.num_dropped += 1
            self._ends_in_line = True
        return size

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor


class Relay:
    """The relays of both streams, and the thread that serves them."""

    def __init__(self) -> None:
        self._streams = [_Stream(STDOUT), _Stream(STDERR)]
        self._wake, self._waker = os.pipe()
        self._is_closing = False
        self._num_reported = 0
        self._errors = self._streams[1]
        self._files = [DroppingFile(stream.descriptor) for stream in self._streams]
        self._before: list[TextIO] = [sys.stdout, sys.stderr]
        for before in self._before:
            _flush(before)
        for stream in self._streams:
            stream.open()
        sys.stdout, sys.stderr = map(_text_stream, self._files)
        self._thread = threading.Thread(target=self._run, name="octavo output", daemon=True)
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """The number of lines that were not written."""
        counts = [stream.num_dropped for stream in self._streams]
        return sum(counts) + sum(file.num_dropped for file in self._files)

    def close(self) -> None:
        """Restore both streams; wait for what has been written to them, but not for long."""
        sys.stdout, sys.stderr = self._before
        for stream in self._streams:
            stream.restore()
        self._is_closing = True
        os.write(self._waker, b"\0")
        # A write may block although poll has reported room; the process must still be able to end.
        self._thread.join(2 * CLOSE_SECONDS)
        if not self._thread.is_alive():
            os.close(self._wake)
            os.close(self._waker)
            for stream in self._streams:
                stream.close()

    def _run(self) -> None:
        given_up_at = math.inf
        while True:
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            for stream in self._streams:
                stream.register(poll)
            ready = dict(poll.poll(self._poll_milliseconds()))
            if self._wake in ready:
                os.read(self._wake, 1)
                given_up_at = time.monotonic() + CLOSE_SECONDS
            has_moved = False
            for stream in self._streams:
                has_moved |= stream.read(ready) | stream.write(ready)
            self._report()
            if self._is_closing and not has_moved:
                is_done = not any(stream.has_bytes for stream in self._streams)
                if is_done or time.monotonic() >= given_up_at:
                    return

    def _poll_milliseconds(self) -> int | None:
        """Return how long to wait at most: at the end only for what waits to be written."""
        if not self._is_closing:
            return None
        has_bytes = any(stream.has_bytes for stream in self._streams)
        return int(1000 * CLOSE_SECONDS) if has_bytes else 0

    def _report(self) -> None:
        """Write how many lines were dropped, once standard error takes lines again."""
        count = self.num_dropped
        if count == self._num_reported or not self._errors.is_well or self._errors.has_bytes:
            return
        self._errors.put(_report(count))
        self._num_reported = count


class _Stream:
    """The relay of one descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        _open_if_closed(descriptor)
        self._target = os.dup(descriptor)  # where it leads
        self._source = -1
        self._waiting: deque[bytes] = deque()
        self._num_bytes = 0  # that wait
        self._part = b""  # of a line that has not ended
        self._has_ended = False  # no process can write to the pipe any more
        self.num_dropped = 0
        self.is_well = True  # the last write succeeded

    @property
    def has_bytes(self) -> bool:
        """True if something waits to be written."""
        return bool(self._waiting)

    def open(self) -> None:
        """Replace the descriptor by a pipe."""
        self._source, sink = os.pipe()
        os.set_blocking(self._source, False)
        os.set_blocking(sink, False)
        with contextlib.suppress(OSError, AttributeError):  # limited for a user, or not Linux
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.dup2(sink, self.descriptor)
        os.close(sink)

    def restore(self) -> None:
        """Make the descriptor lead where it did before."""
        os.dup2(self._target, self.descriptor)

    def close(self) -> None:
        """Close the pipe; children that still write to it get an error."""
        os.close(self._target)
        os.close(self._source)

    def register(self, poll: select.poll) -> None:
        """Register what the thread waits for."""
        if not self._has_ended:
            poll.register(self._source, select.POLLIN)
        if self._waiting:
            poll.register(self._target, select.POLLOUT)

    def read(self, ready: dict[int, int]) -> bool:
        """Take what is in the pipe; return whether there was anything."""
        if not ready.get(self._source, 0):
            return False
        try:
            data = os.read(self._source, _PIPE_BYTES)
        except BlockingIOError:
            return False
        self._has_ended = not data
        *lines, self._part = (self._part + data).split(b"\n")
        for line in lines:
            self.put(line + b"\n")
        # A part of a line waits for its end only if that is in the pipe already.
        if self._part and (len(data) < _PIPE_BYTES or len(self._part) > _MAX_LINE_BYTES):
            self.put(self._part)
            self._part = b""
        return bool(data)

    def put(self, line: bytes) -> None:
        """Queue a line to be written, or drop it if there is no room."""
        if self._num_bytes + len(line) > MAX_WAITING_BYTES:
            self.num_dropped += 1
            return
        self._num_bytes += len(line)
        self._waiting.append(line)

    def write(self, ready: dict[int, int]) -> bool:
        """Write what waits, as much as is taken without waiting; return whether it was any."""
        if not ready.get(self._target, 0) or not self._waiting:
            return False
        data = self._waiting.popleft()
        while self._waiting and len(data) + len(self._waiting[0]) <= _WRITE_BYTES:
            data += self._waiting.popleft()
        try:
            num_sent = os.write(self._target, data[:_WRITE_BYTES])
        except BlockingIOError:
            num_sent = 0
        except OSError:  # the disk is full, or the reader has gone
            self.num_dropped += data.count(b"\n")
            self._num_bytes -= len(data)
            self.is_well = False
            return True
        self.is_well = True
        self._num_bytes -= num_sent
        if num_sent < len(data):
            self._waiting.appendleft(data[num_sent:])
        return num_sent > 0


def _text_stream(file: DroppingFile) -> TextIO:
    return io.TextIOWrapper(
        file,  # type: ignore[type-var]
        encoding="utf-8",
        errors="backslashreplace",
        write_through=True,
    )


def _report(num_dropped: int) -> bytes:
    """Return a line of the log: how many lines were dropped."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime())
    text = f"lines of output that could not be written were dropped: {num_dropped} since the start"
    return f"{now}.000Z WARNING {__name__}: {text}\n".encode()


def _open_if_closed(descriptor: int) -> None:
    """Make a closed descriptor lead nowhere, so that no other file is given its number."""
    try:
        os.fstat(descriptor)
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        if nowhere != descriptor:
            os.dup2(nowhere, descriptor)
            os.close(nowhere)


def _flush(stream: TextIO | None) -> None:
    """Write what a stream still has, if that is possible."""
    with contextlib.suppress(OSError, ValueError):
        if stream is not None:
            stream.flush()


def leave_at_once(status: int) -> NoReturn:
    """End this process as it is, but for what was written already; no other thread is awaited."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(RuntimeError):  # a signal's handler has interrupted its write
            _flush(stream)
    for relay in _relays:
        relay.close()
    os._exit(status)


def discard_output() -> None:
    """Drop output that cannot be written, on which the interpreter would fail at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, stream.fileno())
            os.close(devnull)
