"""The journal's file: appended records, each with a checksum, so that damage is found and bounded.

A record that is damaged is skipped: reading continues at the next mark that a valid record follows.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from octavo.client.durable.framing import MAGIC, Framing
from octavo.client.durable.reading import Records

_CHUNK_BYTES = 1 << 20  # of a rewritten file, written at once
_MODE = 0o600  # prompts and answers are in it


class JournalFileError(OSError):
    """A file that cannot be used as a journal; the message says why and what to do."""


class JournalFile:
    """The open file of one server, which holds a lock on it until it ends, however it ends.

    Every method that writes either does all of it or leaves the file as it was, and raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _open(path)
        try:
            self._path_of_next.unlink(missing_ok=True)  # left by a server that was killed
            self.records = Records(self._descriptor)  # until the first write
        except BaseException:
            os.close(self._descriptor)
            raise
        self._framing = self.records.framing
        self.num_bytes = self.records.num_bytes

    @property
    def _path_of_next(self) -> Path:
        return self.path.with_name(self.path.name + ".next")

    def append(self, payloads: Iterable[bytes]) -> None:
        """Write records behind all others; `replace` must have been called once."""
        assert self._framing is not None, "a new file begins with `replace`"
        data = b"".join(map(self._framing.frame, payloads))
        try:
            self._write(self._descriptor, data)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self.num_bytes)
            raise
        self.num_bytes += len(data)

    def replace(self, payloads: Iterable[bytes]) -> None:
        """Replace all records by these, at once: a reader finds the old file or the new one."""
        framing, name = Framing.draw(), self._path_of_next
        name.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        descriptor = os.open(name, flags, _MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size, chunk = 0, bytearray(framing.header)
            for payload in payloads:
                chunk += framing.frame(payload)
                if len(chunk) >= _CHUNK_BYTES:
                    self._write(descriptor, bytes(chunk))
                    size += len(chunk)
                    chunk.clear()
            self._write(descriptor, bytes(chunk))
            self._sync(descriptor)
            os.replace(name, self.path)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                name.unlink(missing_ok=True)
            raise
        os.close(self._descriptor)
        self._descriptor, self._framing = descriptor, framing
        self.num_bytes = size + len(chunk)
        with contextlib.suppress(OSError):  # not every file system can
            self._sync_directory()

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        self._sync(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, descriptor: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]

    def _sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def _sync_directory(self) -> None:
        directory = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def _open(path: Path) -> int:
    """Open and lock the file; raise JournalFileError for one that is in use or is no file."""
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    while True:
        try:
            descriptor = os.open(path, flags, _MODE)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise JournalFileError(
                f"the journal {path} cannot be opened: {reason}; name a file in a directory "
                "that this user can write"
            ) from error
        try:
            _check(descriptor, path)
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        except FileNotFoundError:  # replaced between `open` and the lock
            pass
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _check(descriptor: int, path: Path) -> None:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise JournalFileError(f"the journal {path} is not a regular file; name another path")
    if status.st_uid != os.geteuid():
        raise JournalFileError(
            f"the journal {path} belongs to another user, who could read prompts and answers in "
            "it; name another path"
        )
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise JournalFileError(
            f"the journal {path} is in use by another server; each server needs its own"
        ) from error
    if status.st_size and not _resembles_magic(os.pread(descriptor, len(MAGIC), 0)):
        raise JournalFileError(
            f"{path} is not empty and no journal of Octavo's; name another path, since it would "
            "be overwritten"
        )
    if stat.S_IMODE(status.st_mode) & 0o077:
        os.fchmod(descriptor, _MODE)


def _resembles_magic(begin: bytes) -> bool:
    """Return whether most of a file's first bytes are a journal's: some may be damaged."""
    return 2 * sum(map(int.__eq__, begin, MAGIC)) > len(begin)
