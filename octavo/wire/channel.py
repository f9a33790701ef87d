"""The engine's end of the connection: numbered frames to and from the front end, and heartbeats.

The working thread owns one socket and the heartbeat thread another; both connect to the front
end's one. Every buffer on the way is bounded: when the front end does not read, the engine waits.
"""

from __future__ import annotations

import math
import os
import signal
import threading
import time

import zmq

from octavo.wire.limits import MAX_FRAME_BYTES
from octavo.wire.link import LinkKeys, use_as_engine
from octavo.wire.message_types import (
    FromEngine,
    FromEngineFrame,
    Heartbeat,
    ToEngine,
    WireError,
    decode_to_engine,
    encode,
)

HIGH_WATER = 1000  # frames that wait in one direction
HEARTBEAT_SECONDS = 0.25
WORK_SOCKET, HEARTBEAT_SOCKET = b"work", b"heartbeat"
_MOST_MILLISECONDS = (1 << 31) - 1  # that one poll may wait
DUMP_SIGNAL = signal.SIGUSR1  # makes an engine log the stacks of all its threads


def identity(kind: bytes, epoch: int) -> bytes:
    """Return the name by which the front end's socket addresses one of the engine's."""
    return b"%s-%d" % (kind, epoch)


def read_identity(name: bytes) -> tuple[bytes, int]:
    """Return a socket's kind and epoch; raise WireError if it is not an engine's."""
    kind, dash, epoch = name.partition(b"-")
    is_ours = kind in (WORK_SOCKET, HEARTBEAT_SOCKET) and dash
    if not is_ours or not epoch.isdigit() or len(epoch) > 18:
        raise WireError(f"a frame came from an unknown socket, {name[:64]!r}")
    return kind, int(epoch)


def _connect(
    context: zmq.Context[zmq.Socket[bytes]], address: str, name: bytes, keys: LinkKeys | None
) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    if keys is not None:
        use_as_engine(socket, keys)
    socket.set(zmq.IDENTITY, name)
    socket.set(zmq.SNDHWM, HIGH_WATER)
    socket.set(zmq.RCVHWM, HIGH_WATER)
    socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.set(zmq.LINGER, 1000)
    socket.connect(address)
    return socket


class StepProgress:
    """The working thread's progress, which the heartbeats report."""

    def __init__(self) -> None:
        self.step = 0
        self.busy_since: float | None = None  # None: it waits for work or for the front end
        self.num_tokens = 0  # of the steps in flight


class Channel:
    """Ordered messages in both directions; with keys, to another machine's front end."""

    def __init__(
        self, address: str, epoch: int, progress: StepProgress, keys: LinkKeys | None = None
    ) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = _connect(self._context, address, identity(WORK_SOCKET, epoch), keys)
        self._epoch = epoch
        self._progress = progress
        self._num_sent = 0
        self._num_received = 0
        self._stop = threading.Event()
        heartbeat = _connect(self._context, address, identity(HEARTBEAT_SOCKET, epoch), keys)
        self._thread = threading.Thread(
            target=self._beat,
            args=(heartbeat, os.getppid()),
            name="octavo heartbeat",
            daemon=True,
        )

    def start_heartbeat(self) -> None:
        """Start the thread that sends heartbeats."""
        self._thread.start()

    def receive(self, seconds: float) -> ToEngine | None:
        """Return the next message; None if none comes within so many seconds."""
        if 0.0 < seconds < math.inf:
            self._socket.poll(min(math.ceil(1000 * seconds), _MOST_MILLISECONDS))
        try:
            data = self._socket.recv(0 if seconds == math.inf else zmq.NOBLOCK)
        except zmq.Again:
            return None
        frame = decode_to_engine(data)
        if (frame.epoch, frame.number) != (self._epoch, self._num_received):
            raise WireError(
                f"received frame {frame.number} of epoch {frame.epoch}, expected frame "
                f"{self._num_received} of epoch {self._epoch}"
            )
        self._num_received += 1
        return frame.message

    def send(self, message: FromEngine) -> None:
        """Send a message; block while the front end does not read."""
        data = encode(FromEngineFrame(self._epoch, self._num_sent, message))
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            busy_since, self._progress.busy_since = self._progress.busy_since, None
            self._socket.send(data)
            if busy_since is not None:
                self._progress.busy_since = time.monotonic()
        self._num_sent += 1

    def close(self) -> None:
        """Close the sockets after what was sent has left."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
        self._context.term()

    def _beat(self, socket: zmq.Socket[bytes], parent: int) -> None:
        """Run the heartbeat thread; it also ends an engine whose front end is gone."""
        number, progress = 0, self._progress
        while not self._stop.wait(HEARTBEAT_SECONDS if number else 0):
            if os.getppid() != parent:
                os._exit(1)
            since = progress.busy_since
            busy = 0.0 if since is None else max(0.0, time.monotonic() - since)
            try:
                frame = FromEngineFrame(
                    self._epoch, number, Heartbeat(progress.step, busy, progress.num_tokens)
                )
                socket.send(encode(frame), zmq.NOBLOCK)
                number += 1
            except zmq.Again:  # the front end does not read now, and needs no old heartbeats
                pass
        socket.close()
