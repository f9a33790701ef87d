"""A file of SQLite that one process has open: how it is opened, and how a change is written.

Each store declares its tables. A change is written as a whole or not at all, whatever is killed.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_APPLICATION = 0x4F435456  # marks the file as one of ours
_VERSION = 1
# Of a disk that is full, and of one on which this user may have no more.
_NO_ROOM = {sqlite3.SQLITE_FULL: errno.ENOSPC, sqlite3.SQLITE_IOERR_WRITE: errno.EDQUOT}


class UnusableError(OSError):
    """A file that cannot be opened; the message says why, behind the name of the file."""


class Database:
    """An open file, which one thread uses at a time; methods raise OSError if the disk refuses."""

    def __init__(self, path: Path, tables: str, *, waits: bool) -> None:
        """Open a file, or create it with these tables; raise UnusableError if that cannot be done.

        If a database waits, a loss of power takes nothing that was written, as a kill never does.
        """
        try:
            if not path.exists():
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                os.close(os.open(path, flags, 0o600))  # it has what users say
            is_new = path.stat().st_size == 0
            self._file = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False
            )
        except (OSError, sqlite3.Error) as error:
            raise UnusableError(f"cannot be opened: {error}") from error
        try:
            if is_new:
                self._file.execute("PRAGMA auto_vacuum = FULL")
            self._prepare(tables, "FULL" if waits else "NORMAL")
        except sqlite3.Error as error:
            self.close()
            is_locked = error.sqlite_errorcode == sqlite3.SQLITE_BUSY
            why = "is in use by another process" if is_locked else f"cannot be read: {error}"
            raise UnusableError(why) from error
        except UnusableError:
            self.close()
            raise

    def _prepare(self, tables: str, synchronous: str) -> None:
        execute = self._file.execute
        execute("PRAGMA locking_mode = EXCLUSIVE")
        execute("PRAGMA secure_delete = ON")
        (application,) = execute("PRAGMA application_id").fetchone()
        (version,) = execute("PRAGMA user_version").fetchone()
        (num_tables,) = execute("SELECT count(*) FROM sqlite_master").fetchone()
        if num_tables and application != _APPLICATION:
            raise UnusableError("is another program's database")
        if num_tables and version != _VERSION:
            raise UnusableError(
                f"was written by another version (format {version}, this has {_VERSION})"
            )
        execute("PRAGMA journal_mode = WAL")
        execute(f"PRAGMA synchronous = {synchronous}")
        execute("BEGIN IMMEDIATE")
        if not num_tables:
            execute(f"PRAGMA application_id = {_APPLICATION}")
            execute(f"PRAGMA user_version = {_VERSION}")
            for table in tables.split(";"):
                execute(table)
        execute("COMMIT")

    def rows(self, query: str, values: Sequence[Any] = ()) -> Iterator[Any]:
        """Yield the rows of a query."""
        with _disk_errors():
            yield from self._file.execute(query, values)

    def write(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Execute a statement with the values of each row; all of them have an effect, or none."""
        with _disk_errors():
            self._file.execute("BEGIN IMMEDIATE")
            try:
                self._file.executemany(statement, rows)
                self._file.execute("COMMIT")
            except BaseException:
                if self._file.in_transaction:  # some errors have ended it
                    self._file.execute("ROLLBACK")
                raise

    def close(self) -> None:
        self._file.close()


@contextmanager
def _disk_errors() -> Iterator[None]:
    """Turn the errors of SQLite into those of the system."""
    try:
        yield
    except sqlite3.Error as error:
        code = _NO_ROOM.get(getattr(error, "sqlite_errorcode", 0), errno.EIO)
        raise OSError(code, str(error)) from error
