"""The reading of a journal's file: its valid records, piece by piece, whatever else is in it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from octavo.client.durable.framing import HEADER_BYTES, MAX_PAYLOAD_BYTES, Framing, framing_of

_PIECE_BYTES = 1 << 20  # that are read at once, unless a record is longer


class Records:
    """The valid records of an open file, whose payloads are yielded once.

    No more than a piece and one record is in memory. `num_damaged` counts the places at which
    something could not be read. Holes of a sparse file are passed over.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.num_bytes = os.fstat(descriptor).st_size
        self._piece, self._begin = b"", 0
        self.framing: Framing | None = framing_of(self._bytes(0, HEADER_BYTES))
        self.num_damaged = int(self.framing is None and self.num_bytes > 0)

    def __iter__(self) -> Iterator[bytes]:
        framing, at = self.framing, HEADER_BYTES
        if framing is None:
            return
        while 0 <= at < self.num_bytes:
            payload = self._payload(framing, at)
            if payload is None:
                self.num_damaged += 1
                at = self._next_mark(framing.mark, at + 1)
                while at >= 0 and (payload := self._payload(framing, at)) is None:
                    at = self._next_mark(framing.mark, at + 1)
            if payload is not None:
                yield payload
                at += framing.size_of(payload)
        self._piece = b""

    def _payload(self, framing: Framing, at: int) -> bytes | None:
        """Return the payload of the record that begins there; None if no valid one does."""
        length = framing.length_in(self._bytes(at, framing.num_bytes))
        if length is None or length > min(MAX_PAYLOAD_BYTES, self.num_bytes - at):
            return None
        return framing.payload_at(self._bytes(at, framing.num_bytes + length), 0)

    def _next_mark(self, mark: bytes, at: int) -> int:
        """Return the place of the next mark; -1 if there is none."""
        while (at := self._next_data(at)) < self.num_bytes:
            piece = os.pread(self._descriptor, _PIECE_BYTES, at)
            found = piece.find(mark)
            if found >= 0:
                return at + found
            if len(piece) < len(mark):
                return -1
            at += len(piece) - len(mark) + 1  # a mark may begin before the end of the piece
        return -1

    def _next_data(self, at: int) -> int:
        """Return the first place from `at` on that is in no hole, as far as that is known."""
        if at >= self.num_bytes:
            return at
        try:
            return os.lseek(self._descriptor, at, os.SEEK_DATA)
        except OSError as error:
            # Only a hole follows, or the file system does not know its holes.
            return self.num_bytes if error.errno == errno.ENXIO else at

    def _bytes(self, at: int, num_bytes: int) -> bytes:
        """Return a part of the file, of which the end may be missing."""
        start = at - self._begin
        if start >= 0 and start + num_bytes <= len(self._piece):
            return self._piece[start : start + num_bytes]
        if num_bytes > _PIECE_BYTES:
            return os.pread(self._descriptor, num_bytes, at)
        self._piece, self._begin = os.pread(self._descriptor, _PIECE_BYTES, at), at
        return self._piece[:num_bytes]
