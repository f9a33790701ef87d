"""Frames on their way down to one engine: numbered, and kept while its socket takes no more.

What waits is bounded by the journal: a request is one message at its beginning and at most one
more at its end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from octavo.exec.messages import Add, Down, DownFrame, WireRequest, encode
from octavo.frontend.launcher import Engine

MANY_BYTES = 4 << 20  # of token ids in one frame


class Downlink:
    """The way to one engine."""

    def __init__(self, engine: Engine, epoch: int) -> None:
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
