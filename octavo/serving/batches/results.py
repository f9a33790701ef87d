"""The results of one batch while it runs: a file of SQLite, which survives a kill.

Results come in the order in which lines were answered; `copy` writes them in the order of the
lines. A write that a kill has cut off is undone, and its lines are answered again.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from octavo.client.durable.framing import MAGIC
from octavo.client.durable.reading import Records
from octavo.serving.store.database import Database, UnusableError

MAX_RESULT_BYTES = 64 << 20
_ROW_BYTES = 16  # that a result takes besides its data
_MODE = 0o600
_TABLES = """
CREATE TABLE identity (value BLOB PRIMARY KEY);
CREATE TABLE results (
    number INTEGER PRIMARY KEY, is_error INTEGER NOT NULL, data BLOB NOT NULL
)
"""
_ADD = "INSERT OR IGNORE INTO results VALUES (?, ?, ?)"
_BEGIN = "INSERT OR IGNORE INTO identity VALUES (?)"
_PREFIX = struct.Struct("<IB")  # of a record of earlier versions: as a row begins


class ResultsError(OSError):
    """A file that does not hold these results; the message says why and what to do."""


class Result(NamedTuple):
    """The result of one line."""

    number: int
    is_error: bool
    data: bytes  # one line of JSON, without its end


class ResultsFile:
    """The results of one batch; `identity` says of which, in a few bytes."""

    def __init__(self, path: Path, identity: bytes) -> None:
        self.path = path
        self._numbers: set[int] = set()
        self.num_errors = 0
        self.num_bytes = 0
        try:
            _convert(path)
            self._database = Database(path, _TABLES, waits=True)
        except UnusableError as error:
            raise ResultsError(
                f"{path} {error}; let another process that answers this batch end first, or delete "
                "the file to begin again"
            ) from error
        try:
            self._load(identity)
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, number: int) -> bool:
        return number in self._numbers

    def append(self, results: Iterable[Result]) -> None:
        """Write results, and wait until they are on the disk; either all are written or none."""
        added = {each.number: each for each in results if each.number not in self._numbers}
        self._database.write(_ADD, added.values())
        for number, is_error, data in added.values():
            self._count(number, is_error, len(data))

    def copy(self, path: Path, *, errors: bool) -> int:
        """Write the results, or the errors, in the order of their lines; return their number.

        The file appears whole, or not at all.
        """
        following, num_written = path.with_name(path.name + ".next"), 0
        query = "SELECT data FROM results WHERE is_error = ? ORDER BY number"
        with open(following, "wb", opener=_private) as file:
            for (data,) in self._database.rows(query, (errors,)):
                file.writelines((data, b"\n"))
                num_written += 1
            file.flush()
            os.fsync(file.fileno())
        os.replace(following, path)
        sync_directory(path.parent)
        return num_written

    def close(self) -> None:
        self._database.close()

    def remove(self) -> None:
        """Close the file, and remove it."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _load(self, identity: bytes) -> None:
        found = list(self._database.rows("SELECT value FROM identity"))
        if not found:
            self._database.write(_BEGIN, [(identity,)])
        elif found != [(identity,)]:
            raise ResultsError(
                f"{self.path} has results of another file of requests, or of another model; delete "
                "it to begin again"
            )
        for row in self._database.rows("SELECT number, is_error, length(data) FROM results"):
            self._count(*row)

    def _count(self, number: int, is_error: bool, num_bytes: int) -> None:
        self._numbers.add(number)
        self.num_errors += is_error
        self.num_bytes += _ROW_BYTES + num_bytes


def _convert(path: Path) -> None:
    """Make a file of SQLite of one of records, as earlier versions have written them."""
    if not path.exists():
        return
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UnusableError("is in use by another process") from error
        records = iter(Records(file.fileno()))
        following = path.with_name(path.name + ".next")
        database = Database(following, _TABLES, waits=True)
        try:
            for first in records:
                database.write(_BEGIN, [(first[_PREFIX.size :],)])
                database.write(_ADD, _rows(records))
        finally:
            database.close()
        os.replace(following, path)
        sync_directory(path.parent)


def _rows(records: Iterator[bytes]) -> Iterator[Result]:
    for payload in records:
        number, is_error = _PREFIX.unpack_from(payload)
        yield Result(number, bool(is_error), payload[_PREFIX.size :])


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, _MODE)


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
