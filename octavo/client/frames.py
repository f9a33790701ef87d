"""Writes and reads the numbered frames of one engine process.

Frames that the socket does not accept yet are queued. The journal bounds their number, since each
request is one message when it begins and at most one more when it is aborted.
"""

from __future__ import annotations

from collections import deque

from octavo.client.launcher import EngineProcess, Incoming
from octavo.wire.message_types import (
    EngineMessage,
    Heartbeat,
    ToEngine,
    ToEngineFrame,
    WireError,
    decode_from_engine,
    encode,
)


class FrameWriter:
    """The queue of frames to one engine."""

    def __init__(self, process: EngineProcess, epoch: int) -> None:
        self._process = process
        self._epoch = epoch
        self._num_written = 0
        self._queue: deque[bytes] = deque()

    def write(self, message: ToEngine) -> None:
        """Queue a message; raise WireError, and change nothing, if it cannot be encoded."""
        data = encode(ToEngineFrame(self._epoch, self._num_written, message))
        self._num_written += 1
        self._queue.append(data)

    def flush(self) -> bool:
        """Send as many frames as the socket accepts; return whether any was sent."""
        num_queued = len(self._queue)
        while self._queue and self._process.send(self._queue[0]):
            self._queue.popleft()
        return len(self._queue) < num_queued


class FrameReader:
    """The decoder and checker of one engine's frames."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._num_read = 0

    def read(self, incoming: Incoming) -> EngineMessage | Heartbeat:
        """Decode a frame; raise WireError if the engine has broken the protocol."""
        frame = decode_from_engine(incoming.data)
        if frame.epoch != self._epoch:
            raise WireError(f"received a frame of epoch {frame.epoch} in epoch {self._epoch}")
        if isinstance(frame.message, Heartbeat) is not incoming.is_heartbeat:
            raise WireError("a message came through the wrong socket")
        if not incoming.is_heartbeat:  # heartbeats may be dropped
            if frame.number != self._num_read:
                raise WireError(f"received frame {frame.number}, expected {self._num_read}")
            self._num_read += 1
        return frame.message
