"""The results of one batch while it runs: a file of appended records, which survives a kill.

A record has a line's number and its result, with a checksum. Results are in the order in which
lines were answered; `copy` writes them in the order of the lines. A record that a kill has cut off
is dropped when the file is opened again, and its line is answered again.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from octavo.client.durable.framing import (
    HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    Framing,
    framing_of,
)

_PREFIX = struct.Struct("<IB")  # the line's number, and whether its result is an error
_NO_LINE = 0xFFFFFFFF  # of the first record, which says what the results belong to
_MODE = 0o600
_PIECE_BYTES = 1 << 18
MAX_RESULT_BYTES = MAX_PAYLOAD_BYTES - _PREFIX.size


class ResultsError(OSError):
    """A file that does not hold these results; the message says why and what to do."""


class Result(NamedTuple):
    """The result of one line."""

    number: int
    is_error: bool
    data: bytes  # one line of JSON, without its end


class _Place(NamedTuple):
    """A place of a result in the file."""

    start: int
    length: int
    is_error: bool


class ResultsFile:
    """The results of one batch; `identity` says of which, in a few bytes."""

    def __init__(self, path: Path, identity: bytes) -> None:
        self.path = path
        self._places: dict[int, _Place] = {}
        self._end = 0  # of the valid records
        self.num_errors = 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)
        try:
            self._lock()
            found = self._load()
            if found is None:
                self._begin(identity)
            elif found != identity:
                raise ResultsError(
                    f"{path} has results of another file of requests, or of another model; delete "
                    "it to begin again"
                )
        except BaseException:
            os.close(self._descriptor)
            raise

    @property
    def num_bytes(self) -> int:
        """The size of the file."""
        return self._end

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, number: int) -> bool:
        return number in self._places

    def append(self, results: Iterable[Result]) -> None:
        """Write results, and wait until they are on the disk; either all are written or none."""
        added: dict[int, _Place] = {}
        parts: list[bytes] = []
        end = self._end
        for number, is_error, data in results:
            if number in self._places or number in added:
                continue
            record = self._framing.frame(_PREFIX.pack(number, is_error) + data)
            end += len(record)
            added[number] = _Place(end - len(data), len(data), is_error)
            parts.append(record)
        self._write(self._end, b"".join(parts))
        self._end = end
        self._places.update(added)
        self.num_errors += sum(place.is_error for place in added.values())

    def copy(self, path: Path, *, errors: bool) -> int:
        """Write the results, or the errors, in the order of their lines; return their number.

        The file appears whole, or not at all.
        """
        chosen = sorted(
            number for number, place in self._places.items() if place.is_error is errors
        )
        following = path.with_name(path.name + ".next")
        with open(following, "wb", opener=_private) as file:
            for number in chosen:
                start, length, _ = self._places[number]
                file.write(os.pread(self._descriptor, length, start))
                file.write(b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(following, path)
        sync_directory(path.parent)
        return len(chosen)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ResultsError(
                f"{self.path} is in use: another process answers this batch; let it end first"
            ) from error

    def _begin(self, identity: bytes) -> None:
        self._framing = Framing.draw()
        os.ftruncate(self._descriptor, 0)
        first = self._framing.header + self._framing.frame(_PREFIX.pack(_NO_LINE, 0) + identity)
        self._write(0, first)
        self._end = len(first)
        sync_directory(self.path.parent)

    def _write(self, at: int, data: bytes) -> None:
        view, place = memoryview(data), at
        try:
            while view:
                written = os.pwrite(self._descriptor, view, place)
                view, place = view[written:], place + written
            os.fdatasync(self._descriptor)
        except OSError:
            os.ftruncate(self._descriptor, at)
            raise

    def _load(self) -> bytes | None:
        """Find the records up to the first that is damaged; return the identity, None without."""
        framing = framing_of(os.pread(self._descriptor, HEADER_BYTES, 0))
        if framing is None:
            return None
        self._framing, self._end = framing, HEADER_BYTES
        identity: bytes | None = None
        while (payload := self._payload(self._end)) is not None:
            number, is_error = _PREFIX.unpack_from(payload)
            self._end += framing.size_of(payload)
            length = len(payload) - _PREFIX.size
            if identity is None:
                identity = payload[_PREFIX.size :]
            elif number not in self._places:
                self._places[number] = _Place(self._end - length, length, bool(is_error))
                self.num_errors += is_error
        os.ftruncate(self._descriptor, self._end)
        return identity

    def _payload(self, at: int) -> bytes | None:
        data = os.pread(self._descriptor, _PIECE_BYTES, at)
        length = self._framing.length_in(data)
        if length is None or length > MAX_PAYLOAD_BYTES:
            return None
        num_bytes = self._framing.num_bytes + length
        if num_bytes > len(data):
            data = os.pread(self._descriptor, num_bytes, at)
        return self._framing.payload_at(data, at=0)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, _MODE)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
