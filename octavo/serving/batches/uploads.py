"""A file that a client sends: its form is read as it arrives, and goes to the disk in pieces."""

from __future__ import annotations

import os
from collections.abc import Callable

from octavo.serving.batches.disk import in_thread
from octavo.serving.batches.multipart import FormReader
from octavo.serving.exchange import Exchange
from octavo.transport.errors import ApiError

FORM_BYTES = 64 << 10  # of a form, beside its file
PIECE_BYTES = 1 << 18


class _NewFile:
    """A file that is written by one thread at a time."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor = -1

    def open(self) -> None:
        """Create the file, which must not exist."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._descriptor = os.open(self._path, flags, 0o600)

    def write(self, pieces: list[bytes]) -> None:
        """Append pieces, and empty their list."""
        view = memoryview(b"".join(pieces))
        pieces.clear()
        while view:
            view = view[os.write(self._descriptor, view) :]

    def finish(self, pieces: list[bytes]) -> None:
        """Append the last pieces, and wait until all are on the disk."""
        self.write(pieces)
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Close the file, if it was opened; no thread writes it now."""
        if self._descriptor >= 0:
            os.close(self._descriptor)


async def receive(
    exchange: Exchange, boundary: bytes, path: str, most: int, keep: Callable[[int], None]
) -> tuple[FormReader, int]:
    """Write the file of a form to the disk as it arrives; return the form and the file's size.

    `keep` gets the bytes so far before they are written, and raises an error if there is no room.
    """
    length = exchange.headers.get("content-length", "")
    if length.isdecimal():
        announced = int(length[:20]) - FORM_BYTES
        _check_size(announced, most)
        keep(announced)
    pieces: list[bytes] = []
    reader, size = FormReader(boundary, pieces.append), 0
    file, num_waiting = _NewFile(path), 0
    try:
        await in_thread(file.open)
        async for part in exchange.body_parts(most + FORM_BYTES):
            num_pieces = len(pieces)
            reader.feed(part)
            num_new = sum(map(len, pieces[num_pieces:]))
            size, num_waiting = size + num_new, num_waiting + num_new
            _check_size(size, most)
            keep(size)
            if num_waiting >= PIECE_BYTES:
                num_waiting = 0
                await in_thread(file.write, pieces)
        reader.finish()
        await in_thread(file.finish, pieces)
    finally:
        file.close()
    return reader, size


def _check_size(size: int, most: int) -> None:
    if size > most:
        raise ApiError(
            413,
            f"the file has at least {size} bytes; {most} are possible (--batch-file-bytes): "
            "divide it",
            code="file_too_large",
        )
