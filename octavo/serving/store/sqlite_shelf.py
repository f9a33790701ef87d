"""Kept responses in a file of SQLite, which survive the server.

A thread of its own reads and writes, in the order of the calls. A write that fails costs what it
would have kept, and is logged once until writes succeed again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from octavo.options.server import ServerSettings
from octavo.options.transport import ServerStartError
from octavo.serving.bounds.shares import ALONE, Shares
from octavo.serving.store.database import Database, UnusableError
from octavo.serving.store.responses import (
    ENTRY_BYTES,
    Content,
    Entry,
    Limits,
    ResponseStore,
    Shelf,
    StoredItem,
)

log = logging.getLogger(__name__)

MAX_UNWRITTEN_BYTES = 64 << 20  # that wait for the disk; beyond it nothing new is kept
_TABLES = """
CREATE TABLE responses (
    number INTEGER PRIMARY KEY, owner TEXT NOT NULL, id TEXT NOT NULL, created INTEGER NOT NULL,
    status TEXT NOT NULL, is_background INTEGER NOT NULL, is_stream INTEGER NOT NULL,
    items_bytes INTEGER NOT NULL, body BLOB NOT NULL, items BLOB NOT NULL,
    events BLOB NOT NULL DEFAULT x'', UNIQUE (owner, id)
)
"""
_ONE = "WHERE owner = ? AND id = ?"
_encode = msgspec.msgpack.Encoder().encode
_items = msgspec.msgpack.Decoder(tuple[StoredItem, ...])


class SqliteShelf(Shelf):
    """The contents of responses in a file, which `open_database` has opened."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._thread = ThreadPoolExecutor(1, "responses")
        self._num_asked = 0  # bytes that were to be written; counted in the event loop
        self._num_done = 0  # of those, the bytes that wait no longer; counted in the thread
        self._has_failed = False

    def found(self) -> Iterator[Entry]:
        """Yield the responses that the file has, the oldest first."""
        columns = "owner, id, created, status, is_background, is_stream"
        sizes = "items_bytes, length(events), length(body)"
        query = f"SELECT {columns}, {sizes} FROM responses ORDER BY number"
        for owner, name, created, status, background, stream, *parts in self._database.rows(query):
            yield Entry(
                *(owner, name, created, 0.0, status, bool(background), bool(stream)),
                num_bytes=ENTRY_BYTES + sum(parts),
                num_settled=parts[-1],
            )

    @property
    def is_full(self) -> bool:
        return self._num_asked - self._num_done > MAX_UNWRITTEN_BYTES

    def put(self, entry: Entry, content: Content) -> None:
        size = content.num_bytes - len(content.body) - len(content.events)
        values = (
            *(entry.owner, entry.id, entry.created, entry.status),
            *(entry.is_background, entry.is_stream, size, content.body),
        )
        columns = "owner, id, created, status, is_background, is_stream, items_bytes, body, items"
        statement = f"INSERT OR REPLACE INTO responses ({columns}) VALUES (?,?,?,?,?,?,?,?,?)"
        self._write(size, statement, lambda: (*values, _encode(content.items)))

    def settle(self, entry: Entry, body: bytes) -> None:
        values = (entry.status, body, entry.owner, entry.id)
        self._write(len(body), f"UPDATE responses SET status = ?, body = ? {_ONE}", lambda: values)

    def add_events(self, entry: Entry, events: bytes) -> None:
        values = (events, entry.owner, entry.id)
        self._write(len(events), f"UPDATE responses SET events = ? {_ONE}", lambda: values)

    def drop(self, entry: Entry) -> None:
        values = (entry.owner, entry.id)
        self._write(0, f"DELETE FROM responses {_ONE}", lambda: values)

    async def read(self, entry: Entry) -> Content | None:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._read, entry.owner, entry.id)

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown)
        self._database.close()

    def _write(self, num_bytes: int, statement: str, make: Callable[[], Sequence[Any]]) -> None:
        """Let the thread execute a statement; it makes the values too."""
        self._num_asked += num_bytes
        self._thread.submit(self._execute, num_bytes, statement, make)

    def _execute(self, num_bytes: int, statement: str, make: Callable[[], Sequence[Any]]) -> None:
        try:
            self._database.write(statement, [make()])
            self._has_failed = False
        except OSError as error:
            if not self._has_failed:
                log.error("responses cannot be written: %s; they are not kept", error.strerror)
            self._has_failed = True
        finally:
            self._num_done += num_bytes

    def _read(self, owner: str, name: str) -> Content | None:
        query = f"SELECT body, items, events FROM responses {_ONE}"
        try:
            for body, items, events in self._database.rows(query, (owner, name)):
                return Content(body, _items.decode(items), events)
        except (OSError, msgspec.MsgspecError) as error:
            log.error("the response %s cannot be read: %s", name, error)
        return None


def open_database(path: Path) -> Database:
    """Open a file of responses; raise ServerStartError for one that cannot be used."""
    try:
        return Database(path, _TABLES, waits=False)
    except UnusableError as error:
        raise ServerStartError(f"responses_store={path} {error}; name another file") from error


def open_store(
    config: ServerSettings,
    clock: Callable[[], float],
    wall_time: Callable[[], float],
    shares: Shares = ALONE,
) -> ResponseStore:
    """Return the store that the settings ask for; raise ServerStartError for an unusable file.

    The age of responses in a file is known by the system's time alone, which is asked once.
    """
    limits = Limits(config.responses_seconds, config.responses_bytes)
    if config.responses_store is None:
        return ResponseStore(limits, Shelf(), clock, [], shares)
    shelf, now = SqliteShelf(open_database(config.responses_store)), wall_time()
    found = list(shelf.found())
    for entry in found:
        entry.expires_at = clock() + limits.seconds - max(0.0, now - entry.created)
    return ResponseStore(limits, shelf, clock, found, shares)
