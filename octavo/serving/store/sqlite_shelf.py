"""Kept responses in a file of SQLite, which survive the server.

A thread of its own reads and writes, in the order of the calls. A write that fails costs what it
would have kept, and is logged once until writes succeed again.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from octavo.options.transport import ServerStartError
from octavo.serving.store.responses import ENTRY_BYTES, Content, Entry, StoredItem

log = logging.getLogger(__name__)

MAX_UNWRITTEN_BYTES = 64 << 20  # that wait for the disk; beyond it nothing new is kept
_APPLICATION = 0x4F435456  # marks the file as one of ours
_VERSION = 1
_TABLE = """
CREATE TABLE responses (
    number INTEGER PRIMARY KEY, owner TEXT NOT NULL, id TEXT NOT NULL, created INTEGER NOT NULL,
    status TEXT NOT NULL, is_background INTEGER NOT NULL, is_stream INTEGER NOT NULL,
    items_bytes INTEGER NOT NULL, body BLOB NOT NULL, items BLOB NOT NULL,
    events BLOB NOT NULL DEFAULT x'', UNIQUE (owner, id)
)
"""
_encode = msgspec.msgpack.Encoder().encode
_items = msgspec.msgpack.Decoder(tuple[StoredItem, ...])


class SqliteShelf:
    """The contents of responses in a file; `open` makes it."""

    def __init__(self, database: sqlite3.Connection) -> None:
        self._database = database
        self._thread = ThreadPoolExecutor(1, "responses")
        self._unwritten = 0  # bytes; counted in the event loop and in the thread
        self._has_failed = False
        self.num_failures = 0

    @classmethod
    def open(cls, path: Path, now: float) -> tuple[SqliteShelf, list[tuple[Entry, float]]]:
        """Open a file; return it with its responses and their ages in seconds.

        Raise ServerStartError for a file that cannot be used.
        """
        database = open_database(path)
        columns = "owner, id, created, status, is_background, is_stream, items_bytes"
        sizes = "length(body), length(events)"
        found: list[tuple[Entry, float]] = []
        query = f"SELECT {columns}, {sizes} FROM responses ORDER BY number"
        for row in database.execute(query):
            owner, name, created, status, background, stream, items, body, events = row
            entry = Entry(
                *(owner, name, created, 0.0, status, bool(background), bool(stream)),
                num_bytes=ENTRY_BYTES + items + body + events,
                num_settled=body,
            )
            found.append((entry, max(0.0, now - created)))
        return cls(database), found

    @property
    def is_full(self) -> bool:
        """True while too much waits for the disk."""
        return self._unwritten > MAX_UNWRITTEN_BYTES

    def put(self, entry: Entry, content: Content) -> None:
        size = content.num_bytes - len(content.body) - len(content.events)
        values = (
            *(entry.owner, entry.id, entry.created, entry.status),
            *(entry.is_background, entry.is_stream, size, content.body),
        )
        columns = "owner, id, created, status, is_background, is_stream, items_bytes, body, items"
        statement = f"INSERT OR REPLACE INTO responses ({columns}) VALUES (?,?,?,?,?,?,?,?,?)"
        self._write(size, lambda: (statement, (*values, _encode(content.items))))

    def settle(self, entry: Entry, body: bytes) -> None:
        statement = "UPDATE responses SET status = ?, body = ? WHERE owner = ? AND id = ?"
        values = (entry.status, body, entry.owner, entry.id)
        self._write(len(body), lambda: (statement, values))

    def add_events(self, entry: Entry, events: bytes) -> None:
        statement = "UPDATE responses SET events = ? WHERE owner = ? AND id = ?"
        self._write(len(events), lambda: (statement, (events, entry.owner, entry.id)))

    def drop(self, entry: Entry) -> None:
        statement = "DELETE FROM responses WHERE owner = ? AND id = ?"
        self._write(0, lambda: (statement, (entry.owner, entry.id)))

    async def read(self, entry: Entry) -> Content | None:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._read, entry.owner, entry.id)

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)
        self._database.close()

    def _write(self, num_bytes: int, make: Callable[[], tuple[str, tuple[Any, ...]]]) -> None:
        """Let the thread execute a statement; it makes the values too."""
        self._unwritten += num_bytes
        done = self._thread.submit(self._execute, make)
        loop = asyncio.get_running_loop()
        done.add_done_callback(lambda _: self._call_in(loop, num_bytes))

    def _call_in(self, loop: asyncio.AbstractEventLoop, num_bytes: int) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._count, num_bytes)

    def _count(self, num_bytes: int) -> None:
        self._unwritten -= num_bytes

    def _execute(self, make: Callable[[], tuple[str, tuple[Any, ...]]]) -> None:
        try:
            self._database.execute(*make())
        except sqlite3.Error as error:
            self.num_failures += 1
            if not self._has_failed:
                log.error("responses cannot be written: %s; they are not kept", error)
            self._has_failed = True
        else:
            self._has_failed = False

    def _read(self, owner: str, name: str) -> Content | None:
        query = "SELECT body, items, events FROM responses WHERE owner = ? AND id = ?"
        try:
            row = self._database.execute(query, (owner, name)).fetchone()
            return None if row is None else Content(row[0], _items.decode(row[1]), row[2])
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            log.error("the response %s cannot be read: %s", name, error)
            return None


def open_database(path: Path) -> sqlite3.Connection:
    """Open a file for this server alone; raise ServerStartError for one that cannot be used."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # it has what users say
        is_new = path.stat().st_size == 0
        database = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error) as error:
        raise _unusable(path, f"cannot be opened: {error}") from error
    try:
        if is_new:
            database.execute("PRAGMA auto_vacuum = FULL")
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        database.execute("PRAGMA secure_delete = ON")
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (num_tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if num_tables and application != _APPLICATION:
            raise _unusable(path, "is another program's database")
        if num_tables and version != _VERSION:
            raise _unusable(
                path, f"was written by another version (format {version}, this has {_VERSION})"
            )
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute("BEGIN IMMEDIATE")
        if not num_tables:
            database.execute(f"PRAGMA application_id = {_APPLICATION}")
            database.execute(f"PRAGMA user_version = {_VERSION}")
            database.execute(_TABLE)
        database.execute("COMMIT")
    except sqlite3.Error as error:
        database.close()
        why = "is used by another server" if "locked" in str(error) else f"cannot be read: {error}"
        raise _unusable(path, why) from error
    except ServerStartError:
        database.close()
        raise
    return database


def _unusable(path: Path, why: str) -> ServerStartError:
    return ServerStartError(f"responses_store={path} {why}; name another file")
