"""The directory of files and batches, of which every change is on the disk before it is answered.

    lock                  held by the server that uses the directory
    files/ID              the contents of a file
    files/ID.json         its description, without which the contents are waste
    batches/ID.json       a batch
    batches/ID.results    its results while it runs

A description is replaced as a whole: after a kill it is the old one or the new one.
"""

from __future__ import annotations

import fcntl
import logging
import os
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

log = logging.getLogger(__name__)

MAX_DESCRIPTION_BYTES = 1 << 20  # more than any has
_MODE = 0o600
_DESCRIPTION = ".json"
_RESULTS = ".results"
_NEXT = ".next"
S = TypeVar("S", StoredFile, StoredBatch)


class Store:
    """The files and batches of one directory; methods that write wait for the disk."""

    def __init__(self, directory: Path) -> None:
        self._files, self._batches = directory / "files", directory / "batches"
        try:
            for each in (directory, self._files, self._batches):
                each.mkdir(mode=0o700, exist_ok=True)
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            self._lock = os.open(directory / "lock", flags, _MODE)
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise ServerStartError(
                f"the batch directory {directory} cannot be used: {why}; name one that this user "
                "can write"
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._lock)
            raise ServerStartError(
                f"the batch directory {directory} is in use by another server; each needs its own"
            ) from None
        self.files = dict(_load(self._files, StoredFile))
        self.batches = dict(_load(self._batches, StoredBatch))
        self.bytes_by_owner: Counter[str] = Counter()  # of files
        self.files_by_owner: Counter[str] = Counter()
        for stored in self.files.values():
            self._count(stored, 1)
        self._remove_waste()

    def close(self) -> None:
        os.close(self._lock)

    def contents(self, name: str) -> Path:
        """Return the path of a file's contents."""
        return self._files / name

    def results(self, name: str) -> Path:
        """Return the path of the results of a batch that runs."""
        return self._batches / f"{name}{_RESULTS}"

    def save_file(self, stored: StoredFile) -> None:
        """Write the description of a file whose contents are there."""
        _save(self._files, stored.file.id, stored)

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
        _save(self._batches, stored.batch.id, stored)

    def remove_file(self, name: str) -> None:
        """Remove a file: first the description, so that a kill leaves waste at most."""
        description = self._files / f"{name}{_DESCRIPTION}"
        if description.exists():
            description.unlink()
            sync_directory(self._files)
        self.contents(name).unlink(missing_ok=True)

    def remove_batch(self, name: str) -> None:
        """Remove a batch that has ended."""
        (self._batches / f"{name}{_DESCRIPTION}").unlink(missing_ok=True)
        self.results(name).unlink(missing_ok=True)

    def _remove_waste(self) -> None:
        """Remove what an upload or a write that was cut off has left.

        What has a description stays, also if that cannot be read.
        """
        described = {path.stem for path in self._files.glob(f"*{_DESCRIPTION}")}
        for path in self._files.iterdir():
            if path.suffix != _DESCRIPTION and path.name not in described:
                path.unlink()
        for path in self._batches.iterdir():
            stored = self.batches.get(path.stem)
            if stored is not None:
                has_ended = stored.batch.status in ENDED
            else:
                has_ended = not path.with_suffix(_DESCRIPTION).exists()
            if path.suffix == _NEXT or (path.suffix == _RESULTS and has_ended):
                path.unlink()


def new_id(kind: str) -> str:
    """Return an id that cannot be guessed."""
    return f"{kind}{secrets.token_hex(12)}"


def _load(directory: Path, kind: type[S]) -> Iterator[tuple[str, S]]:
    """Yield what can be read; name what cannot, and leave it for the operator."""
    for path in sorted(directory.glob(f"*{_DESCRIPTION}")):
        try:
            with path.open("rb") as file:
                data = file.read(MAX_DESCRIPTION_BYTES + 1)
            if len(data) > MAX_DESCRIPTION_BYTES:
                raise OSError(f"it has more than {MAX_DESCRIPTION_BYTES} bytes")
            yield path.stem, msgspec.json.decode(data, type=kind)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            log.error("%s cannot be read, and is left out: %s", path, error)


def _save(directory: Path, name: str, value: msgspec.Struct) -> None:
    path = directory / f"{name}{_DESCRIPTION}"
    following = directory / f"{name}{_NEXT}"
    data = msgspec.json.encode(value)
    try:
        with open(following, "wb", opener=_private) as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(following, path)
    except OSError:  # a full disk is not filled by what is left of it
        with suppress(OSError):
            following.unlink(missing_ok=True)
        raise
    sync_directory(directory)


def _private(name: str, flags: int) -> int:
    return os.open(name, flags, _MODE)
