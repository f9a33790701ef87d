"""The directory of files and batches, of which every change is on the disk before it is answered.

descriptions     of files, and the states of batches; the server that uses the directory has
                 this file of SQLite open
contents/ID      the contents of a file, which are waste without its description
results/ID       the results of a batch while it runs
"""

from __future__ import annotations

import fcntl
import logging
import re
import secrets
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import msgspec

from octavo.options.transport import ServerStartError
from octavo.serving.batches.results import sync_directory
from octavo.serving.batches.schema import ENDED, StoredBatch, StoredFile
from octavo.serving.store.database import Database, UnusableError

log = logging.getLogger(__name__)

TABLES = """
CREATE TABLE files (id TEXT PRIMARY KEY, description BLOB NOT NULL);
CREATE TABLE batches (id TEXT PRIMARY KEY, description BLOB NOT NULL)
"""
MAX_DESCRIPTION_BYTES = 1 << 20  # more than any has
S = TypeVar("S", StoredFile, StoredBatch)


class Store:
    """The files and batches of one directory; methods that write wait for the disk."""

    def __init__(self, directory: Path) -> None:
        self._contents, self._results = directory / "contents", directory / "results"
        try:
            for each in (directory, self._contents, self._results):
                each.mkdir(mode=0o700, exist_ok=True)
            self._database = Database(directory / "descriptions", TABLES, waits=True)
            self._adopt(directory)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            if not isinstance(error, UnusableError):
                why = f"cannot be used: {why}"
            raise ServerStartError(
                f"the batch directory {directory} {why}; name one that this user can write, for "
                "this server alone"
            ) from error
        self.files = dict(self._load("files", StoredFile))
        self.batches = dict(self._load("batches", StoredBatch))
        self.bytes_by_owner: Counter[str] = Counter()  # of files
        self.files_by_owner: Counter[str] = Counter()
        for stored in self.files.values():
            self._count(stored, 1)
        self._remove_waste()

    def close(self) -> None:
        self._database.close()

    def contents(self, name: str) -> Path:
        """Return the path of a file's contents."""
        return self._contents / name

    def results(self, name: str) -> Path:
        """Return the path of the results of a batch that runs."""
        return self._results / name

    def save_file(self, stored: StoredFile) -> None:
        """Write the description of a file whose contents are there."""
        sync_directory(self._contents)
        self._save("files", stored.file.id, stored)

    def add_file(self, stored: StoredFile) -> None:
        """List a file that is on the disk."""
        self.drop_file(stored.file.id)
        self.files[stored.file.id] = stored
        self._count(stored, 1)

    def drop_file(self, name: str) -> None:
        """List a file no longer."""
        stored = self.files.pop(name, None)
        if stored is not None:
            self._count(stored, -1)

    def _count(self, stored: StoredFile, sign: int) -> None:
        """Count a file of a key, or (-1) no longer."""
        for counter, amount in (
            (self.bytes_by_owner, stored.file.bytes),
            (self.files_by_owner, 1),
        ):
            counter[stored.owner] += sign * amount
            if not counter[stored.owner]:
                del counter[stored.owner]

    def save_batch(self, stored: StoredBatch) -> None:
        """Write the state of a batch."""
        self._save("batches", stored.batch.id, stored)

    def remove_file(self, name: str) -> None:
        """Remove a file: first the contents, so that a full disk has room for the change."""
        self.contents(name).unlink(missing_ok=True)
        self._database.write("DELETE FROM files WHERE id = ?", [(name,)])

    def remove_batch(self, name: str) -> None:
        """Remove a batch that has ended."""
        self._database.write("DELETE FROM batches WHERE id = ?", [(name,)])

    def _adopt(self, directory: Path) -> None:
        """Take over what earlier versions have left, which had a file for each description."""
        lock = directory / "lock"
        if not lock.exists():
            return
        with lock.open("ab") as held:
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                self.close()
                raise UnusableError("is in use by another process") from error
            for table, kind, target in (
                ("files", "", self._contents),
                ("batches", ".results", self._results),
            ):
                paths = [each for each in (directory / table).glob("*.json") if _is_small(each)]
                rows = ((each.stem, each.read_bytes()) for each in paths)
                self._database.write(f"INSERT OR REPLACE INTO {table} VALUES (?, ?)", rows)
                for path in paths:
                    with suppress(FileNotFoundError):
                        path.with_suffix(kind).rename(target / path.stem)
                sync_directory(target)
                for path in paths:
                    path.unlink()
            lock.unlink()

    def _save(self, table: str, name: str, value: msgspec.Struct) -> None:
        statement = f"INSERT OR REPLACE INTO {table} VALUES (?, ?)"
        self._database.write(statement, [(name, msgspec.json.encode(value))])

    def _load(self, table: str, kind: type[S]) -> Iterator[tuple[str, S]]:
        """Yield what can be read; name what cannot, and leave it for the operator."""
        for name, data in self._database.rows(f"SELECT id, description FROM {table}"):
            try:
                yield name, msgspec.json.decode(data, type=kind)
            except msgspec.MsgspecError as error:
                log.error("%s cannot be read, and is left out: %s", name, error)

    def _remove_waste(self) -> None:
        """Remove what an upload or a batch that was cut off has left.

        What has a description stays, also if that cannot be read.
        """
        described = {name for (name,) in self._database.rows("SELECT id FROM files")}
        for path in self._contents.iterdir():
            if path.name not in described:
                path.unlink()
        has_ended = {name: each.batch.status in ENDED for name, each in self.batches.items()}
        known = {name for (name,) in self._database.rows("SELECT id FROM batches")}
        for path in self._results.iterdir():
            name = re.split("[-.]", path.name)[0]  # SQLite's own files have its name and more
            if name not in known or has_ended.get(name):
                path.unlink()


def new_id(kind: str) -> str:
    """Return an id that cannot be guessed."""
    return f"{kind}{secrets.token_hex(12)}"


def _is_small(path: Path) -> bool:
    is_small = path.stat().st_size <= MAX_DESCRIPTION_BYTES
    if not is_small:
        log.error("%s is no description, and is left out", path)
    return is_small
