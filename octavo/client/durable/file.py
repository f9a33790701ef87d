"""The journal's file: appended records, each with a checksum, so that damage is found and bounded.

    magic, mark, key │ mark, length, checksum, payload │ mark, length, checksum, payload │ …

A record that is damaged is skipped: reading continues at the next mark that a valid record follows.
Mark and key are drawn for each file, and the checksum depends on the key. So a text of a client
can neither look like a record nor make reading slow, wherever the file is damaged.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

MAGIC = b"octavo journal 1"
_MARK_BYTES = 8
_KEY_BYTES = 16
HEADER_BYTES = len(MAGIC) + _MARK_BYTES + _KEY_BYTES
_CHECKSUM_BYTES = 8
_LENGTH = struct.Struct("<I")
MAX_PAYLOAD_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20  # of a rewritten file, written at once
_MODE = 0o600  # prompts and answers are in it


class JournalFileError(OSError):
    """A file that cannot be used as a journal; the message says why and what to do."""


@dataclass(slots=True)
class Contents:
    """The valid records of a file."""

    payloads: list[bytes] = field(default_factory=list)
    num_damaged: int = 0  # places at which something could not be read


@dataclass(frozen=True, slots=True)
class Framing:
    """The mark before the records of one file, and the key of their checksums."""

    mark: bytes
    key: bytes

    @classmethod
    def draw(cls) -> Framing:
        """Return a new framing, which no client can guess."""
        return cls(secrets.token_bytes(_MARK_BYTES), secrets.token_bytes(_KEY_BYTES))

    @property
    def header(self) -> bytes:
        """The first bytes of the file."""
        return MAGIC + self.mark + self.key

    def frame(self, payload: bytes) -> bytes:
        """Return a payload as a record."""
        if len(payload) > MAX_PAYLOAD_BYTES:
            raise ValueError(f"a record of {len(payload)} bytes; at most {MAX_PAYLOAD_BYTES} fit")
        length = _LENGTH.pack(len(payload))
        return b"".join((self.mark, length, self._checksum(length, payload), payload))

    def payload_at(self, data: bytes, at: int) -> bytes | None:
        """Return the payload of the record that begins there; None if no valid one does."""
        begin = at + len(self.mark) + _LENGTH.size + _CHECKSUM_BYTES
        if data[at : at + len(self.mark)] != self.mark or begin > len(data):
            return None
        length = data[at + len(self.mark) : at + len(self.mark) + _LENGTH.size]
        end = begin + _LENGTH.unpack(length)[0]
        payload = data[begin:end]
        if end > len(data) or end - begin > MAX_PAYLOAD_BYTES:
            return None
        found = data[begin - _CHECKSUM_BYTES : begin]
        return payload if found == self._checksum(length, payload) else None

    def size_of(self, payload: bytes) -> int:
        """Return the length of a payload's record."""
        return len(self.mark) + _LENGTH.size + _CHECKSUM_BYTES + len(payload)

    def _checksum(self, length: bytes, payload: bytes) -> bytes:
        digest = hashlib.blake2b(length, key=self.key, digest_size=_CHECKSUM_BYTES)
        digest.update(payload)
        return digest.digest()


def read(data: bytes) -> tuple[Framing | None, Contents]:
    """Return all valid records of a file, whatever else is in it, and how they are framed."""
    contents = Contents()
    if not data:
        return None, contents
    if not data.startswith(MAGIC) or len(data) < HEADER_BYTES:
        contents.num_damaged = 1
        return None, contents
    key_at = len(MAGIC) + _MARK_BYTES
    framing = Framing(data[len(MAGIC) : key_at], data[key_at:HEADER_BYTES])
    at = HEADER_BYTES
    while at < len(data):
        payload = framing.payload_at(data, at)
        if payload is not None:
            contents.payloads.append(payload)
            at += framing.size_of(payload)
            continue
        contents.num_damaged += 1
        at = data.find(framing.mark, at + 1)
        if at < 0:
            break
        while framing.payload_at(data, at) is None:
            at = data.find(framing.mark, at + 1)
            if at < 0:
                return framing, contents
    return framing, contents


class JournalFile:
    """The open file of one server, which holds a lock on it until it ends, however it ends.

    Every method that writes either does all of it or leaves the file as it was, and raises OSError.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor = _open(path)
        try:
            self._path_of_next.unlink(missing_ok=True)  # left by a server that was killed
            data = _all_of(self._descriptor)
        except BaseException:
            os.close(self._descriptor)
            raise
        self._framing, self.contents = read(data)
        self.num_bytes = len(data)

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


def _all_of(descriptor: int) -> bytes:
    parts, at = [], 0
    while part := os.pread(descriptor, 1 << 24, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)
