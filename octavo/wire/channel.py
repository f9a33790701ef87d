"""The engine's end of the socket: numbered frames to and from the front end, and the pulse.

The working thread owns one socket, the pulse's thread another; both lead to the front end's one.
Every buffer on the way is bounded: when the front end does not read, the engine waits for it.
"""

from __future__ import annotations

import os
import signal
import threading
import time

import zmq

from octavo.wire.message_types import (
    MAX_FRAME_BYTES,
    Down,
    Pulse,
    Up,
    UpFrame,
    WireError,
    decode_down,
    encode,
)

HIGH_WATER = 1000  # frames that wait in one direction
PULSE_SECONDS = 0.25
WORK_SOCKET, PULSE_SOCKET = b"work", b"pulse"
DUMP_SIGNAL = signal.SIGUSR1  # asks an engine for the stacks of all its threads


def identity(kind: bytes, epoch: int) -> bytes:
    """By what the front end's socket knows one of ours."""
    return b"%s-%d" % (kind, epoch)


def read_identity(name: bytes) -> tuple[bytes, int]:
    """The kind of a socket, and the epoch; WireError if it is none of ours."""
    kind, dash, epoch = name.partition(b"-")
    is_ours = kind in (WORK_SOCKET, PULSE_SOCKET) and dash
    if not is_ours or not epoch.isdigit() or len(epoch) > 18:
        raise WireError(f"a frame from an unknown socket {name[:64]!r}")
    return kind, int(epoch)


def _connect(context: zmq.Context[zmq.Socket[bytes]], path: str, name: bytes) -> zmq.Socket[bytes]:
    socket = context.socket(zmq.DEALER)
    socket.set(zmq.IDENTITY, name)
    socket.set(zmq.SNDHWM, HIGH_WATER)
    socket.set(zmq.RCVHWM, HIGH_WATER)
    socket.set(zmq.MAXMSGSIZE, MAX_FRAME_BYTES)
    socket.set(zmq.LINGER, 1000)
    socket.connect(f"ipc://{path}")
    return socket


class Progress:
    """How far the working thread is, for the pulse to tell."""

    def __init__(self) -> None:
        self.step = 0
        self.busy_since: float | None = None  # None: it waits for work, or for the front end
        self.num_tokens = 0  # of the step at work


class Channel:
    """Messages in order, both ways."""

    def __init__(self, path: str, epoch: int, progress: Progress) -> None:
        self._context = zmq.Context(io_threads=1)
        self._socket = _connect(self._context, path, identity(WORK_SOCKET, epoch))
        self._epoch = epoch
        self._progress = progress
        self._num_sent = 0
        self._num_received = 0
        self._stop = threading.Event()
        pulse = _connect(self._context, path, identity(PULSE_SOCKET, epoch))
        self._thread = threading.Thread(
            target=self._beat, args=(pulse, os.getppid()), name="octavo pulse", daemon=True
        )

    def start_pulse(self) -> None:
        """Begin to show signs of life."""
        self._thread.start()

    def receive(self, wait: bool) -> Down | None:
        """The next message; None if there is none yet, and none is to be waited for."""
        try:
            data = self._socket.recv(0 if wait else zmq.NOBLOCK)
        except zmq.Again:
            return None
        frame = decode_down(data)
        if (frame.epoch, frame.number) != (self._epoch, self._num_received):
            raise WireError(
                f"frame {frame.number} of epoch {frame.epoch} came where frame "
                f"{self._num_received} of epoch {self._epoch} was to come"
            )
        self._num_received += 1
        return frame.message

    def send(self, message: Up) -> None:
        """Hand a message on; wait while the front end does not read."""
        data = encode(UpFrame(self._epoch, self._num_sent, message))
        try:
            self._socket.send(data, zmq.NOBLOCK)
        except zmq.Again:
            busy_since, self._progress.busy_since = self._progress.busy_since, None
            self._socket.send(data)
            if busy_since is not None:
                self._progress.busy_since = time.monotonic()
        self._num_sent += 1

    def close(self) -> None:
        """Hand on what has been sent, and let go."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()
        self._context.term()

    def _beat(self, socket: zmq.Socket[bytes], parent: int) -> None:
        """The pulse's thread; it also ends an engine whose front end is gone."""
        number, progress = 0, self._progress
        while not self._stop.wait(PULSE_SECONDS if number else 0):
            if os.getppid() != parent:
                os._exit(1)
            since = progress.busy_since
            busy = 0.0 if since is None else max(0.0, time.monotonic() - since)
            try:
                frame = UpFrame(
                    self._epoch, number, Pulse(progress.step, busy, progress.num_tokens)
                )
                socket.send(encode(frame), zmq.NOBLOCK)
                number += 1
            except zmq.Again:  # the front end does not read; it will not miss a beat
                pass
        socket.close()
