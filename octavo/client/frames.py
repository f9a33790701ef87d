"""Numbered frames to and from one engine process.

Frames that the socket does not take yet are kept; the journal bounds how many there can be, since a
request is one message at its beginning and at most one more at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from octavo.client.launcher import EngineProcess, Incoming
from octavo.wire.message_types import (
    Add,
    Down,
    DownFrame,
    Failed,
    Hello,
    News,
    Pulse,
    Ready,
    WireError,
    WireRequest,
    decode_up,
    encode,
)

MANY_BYTES = 4 << 20  # of token ids in one frame


class Downlink:
    """The way to one engine."""

    def __init__(self, engine: EngineProcess, epoch: int) -> None:
        self._engine = engine
        self._epoch = epoch
        self._num_posted = 0
        self._outbox: deque[bytes] = deque()

    def post(self, message: Down) -> None:
        """Put a message behind the others; WireError, and no harm done, if it is too large."""
        data = encode(DownFrame(self._epoch, self._num_posted, message))
        self._num_posted += 1
        self._outbox.append(data)

    def flush(self) -> bool:
        """Hand over as much as is taken; whether it was anything."""
        num_waiting = len(self._outbox)
        while self._outbox and self._engine.send(self._outbox[0]):
            self._outbox.popleft()
        return len(self._outbox) < num_waiting


def in_batches(requests: Iterable[WireRequest]) -> Iterator[Add]:
    """All the requests in their order, in messages of a handy size."""
    batch: list[WireRequest] = []
    num_bytes = 0
    for request in requests:
        size = len(request.prompt) + len(request.emitted)
        if batch and num_bytes + size > MANY_BYTES:
            yield Add(tuple(batch))
            batch, num_bytes = [], 0
        batch.append(request)
        num_bytes += size
    if batch:
        yield Add(tuple(batch))


Said = Hello | Ready | Failed | News


class Uplink:
    """The way from one engine."""

    def __init__(self, epoch: int) -> None:
        self._epoch = epoch
        self._num_received = 0

    def read(self, incoming: Incoming) -> Said | Pulse:
        """What a frame says; WireError if the engine cannot be trusted any more."""
        frame = decode_up(incoming.data)
        if frame.epoch != self._epoch:
            raise WireError(f"a frame of epoch {frame.epoch} in epoch {self._epoch}")
        is_pulse = isinstance(frame.message, Pulse)
        if is_pulse is not incoming.is_pulse:
            raise WireError("a message came by the wrong socket")
        if not is_pulse:  # of those some may be left out
            if frame.number != self._num_received:
                raise WireError(f"frame {frame.number} came instead of {self._num_received}")
            self._num_received += 1
        return frame.message
