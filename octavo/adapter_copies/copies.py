"""The copies of adapters that a server has on disk, each in a directory named by its content.

What happens to a file after it was copied changes nothing: requests finish on the adapter that they
started with, in another engine too. Copies in use are pinned; of the others, those used longest ago
are removed where room is needed. All of them end with the process. Safe to use from any thread.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from octavo import env
from octavo.adapter_copies.errors import CHANGED, NO_ROOM, UNREADABLE, AdapterFileError
from octavo.adapter_copies.files import (
    GGUF,
    Fingerprint,
    OpenFile,
    fingerprint,
    identity,
    opened,
    shown,
)
from octavo.adapter_copies.identity import DIGEST_BYTES
from octavo.locked_directory import make, remove_abandoned

PREFIX = "octavo-adapters-"
_PART = "part-"  # of a copy that is being made
_CHUNK_BYTES = 1 << 20
_MOST_KNOWN = 10_000  # sources whose content is remembered


@dataclass(slots=True)
class _Copy:
    """A copy on disk."""

    num_bytes: int
    source: Path | None  # that it was made from; None: there were several
    num_pins: int = 0


class AdapterCopies:
    """The copies in one directory, which belongs to this process."""

    def __init__(
        self, most_bytes: int, most_adapter_bytes: int, parent: Path | None = None
    ) -> None:
        self._most_bytes = most_bytes
        self._most_adapter_bytes = most_adapter_bytes
        self._held, self.path = _own_directory(parent)
        self._place = re.compile(
            rf"{re.escape(str(self.path))}/(?P<digest>[0-9a-f]+)(?:/(?P<name>[A-Za-z_.]*[A-Za-z]))?"
        )
        self._guard = threading.Lock()
        self._copies: OrderedDict[str, _Copy] = OrderedDict()  # the one used longest ago first
        # What each source was when it was copied, and its content then.
        self._known: OrderedDict[Path, tuple[Fingerprint, str]] = OrderedDict()
        self._reserved_bytes = 0  # of copies that are being made
        self._num_gone = 0  # copies that were removed
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._copies)

    @property
    def num_bytes(self) -> int:
        """The bytes of all copies, and of those that are being made."""
        return self._reserved_bytes + sum(each.num_bytes for each in self._copies.values())

    def place(self, digest: str) -> Path:
        """Return the directory of a copy."""
        return self.path / digest

    def make(self, source: Path) -> str:
        """Copy an adapter's files; return the digest of their content, which is pinned once.

        Raise AdapterFileError if they cannot be copied; nothing is left of them then. Files that
        change meanwhile are copied once more.
        """
        try:
            return self._make(source)
        except AdapterFileError as error:
            if error.code != CHANGED:
                raise
            return self._make(source)

    def _make(self, source: Path) -> str:
        before = fingerprint(source)
        with opened(source, self._most_adapter_bytes) as files:
            size = sum(each.num_bytes for each in files)
            self._reserve(size)
            part: Path | None = None
            is_settled = False
            try:
                part = Path(tempfile.mkdtemp(prefix=_PART, dir=self.path))
                digest = _copy(files, part)
                _check_same(source, before, files)
                self._settle(digest, part, size, source)
                is_settled = True
            except OSError as error:
                code = NO_ROOM if error.errno in (errno.ENOSPC, errno.EDQUOT) else UNREADABLE
                raise AdapterFileError(
                    code, f"{shown(source)} cannot be copied: {error.strerror or error}"
                ) from None
            finally:
                if not is_settled:
                    with self._guard:
                        self._reserved_bytes -= size
                if part is not None:
                    shutil.rmtree(part, ignore_errors=True)
        return digest

    def take(self, source: Path) -> str:
        """Return the digest of an adapter's content, pinned once, like `make`.

        Files that have not changed since they were copied are not read again.
        """
        before = fingerprint(source)
        with self._guard:
            known, digest = self._known.get(source, ((), ""))
        if known == before and self.pin(digest):
            return digest
        digest = self.make(source)
        if fingerprint(source) == before:
            with self._guard:
                self._known[source] = before, digest
                if len(self._known) > _MOST_KNOWN:
                    self._known.popitem(last=False)
        return digest

    def pin(self, digest: str) -> bool:
        """Keep a copy until `unpin`; return whether it is still there."""
        with self._guard:
            found = self._copies.get(digest)
            if found is None:
                return False
            self._copies.move_to_end(digest)
            found.num_pins += 1
            return True

    def unpin(self, digest: str) -> None:
        """Let a copy go, if nothing else has pinned it, where room is needed."""
        with self._guard:
            found = self._copies.get(digest)
            if found is not None:  # else all were removed at the end
                found.num_pins -= 1

    def discard(self, digest: str) -> None:
        """Remove a copy now, unless something has pinned it; it may take as long as its file."""
        with self._guard:
            found = self._copies.get(digest)
            if found is None or found.num_pins:
                return
            gone = self._take_away(digest)
        _remove_all(gone)

    def as_given(self, message: str, source: Path | None = None) -> str:
        """Return a message in which the user's own path stands in place of a copy's.

        Without a `source` it is the one that the copy was made from; of several, none is named:
        they may be of different users.
        """
        return self._place.sub(partial(self._source_of, source), message)

    def _source_of(self, source: Path | None, found: re.Match[str]) -> str:
        if source is None:
            with self._guard:
                copy = self._copies.get(found["digest"])
            source = None if copy is None else copy.source
        if source is None:
            return found[0]
        name = found["name"]
        return shown(source if name in (None, GGUF) else source / name)

    def close(self) -> None:
        """Remove everything. A second call does nothing."""
        with self._guard:
            if self._is_closed:
                return
            self._is_closed = True
            self._copies.clear()
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._held)

    def _reserve(self, size: int) -> None:
        """Make room for a copy; raise AdapterFileError if those in use leave none."""
        gone: list[Path] = []
        try:
            with self._guard:
                self._check_open()
                idle = [name for name, each in self._copies.items() if not each.num_pins]
                while self.num_bytes + size > self._most_bytes:
                    if not idle:
                        raise AdapterFileError(
                            NO_ROOM,
                            f"a copy of {size:,} bytes does not fit beside those in use, of "
                            f"{self._most_bytes:,} bytes together (lora_copies_bytes): raise that, "
                            "or try again when requests have ended",
                        )
                    gone.append(self._take_away(idle.pop(0)))
                self._reserved_bytes += size
        finally:
            for each in gone:
                _remove_all(each)

    def _check_open(self) -> None:
        if self._is_closed:
            raise AdapterFileError(NO_ROOM, "the server is ending, and copies no more adapters")

    def _settle(self, digest: str, part: Path, size: int, source: Path) -> None:
        """Give a whole copy its name, and pin it; one with the same content is used instead.

        What was reserved for it is its own then.
        """
        with self._guard:
            self._check_open()
            found = self._copies.get(digest)
            if found is None:
                part.rename(self.place(digest))
                found = self._copies[digest] = _Copy(size, source)
            elif found.source != source:
                found.source = None
            self._copies.move_to_end(digest)
            found.num_pins += 1
            self._reserved_bytes -= size

    def _take_away(self, digest: str) -> Path:
        """Give a copy another name, since its own may soon be taken again; return its path.

        Its files are removed without the lock, for which the event loop may wait.
        """
        gone = self.path / f"{_PART}{self._num_gone}"
        with contextlib.suppress(FileNotFoundError):
            self.place(digest).rename(gone)
        self._num_gone += 1
        del self._copies[digest]
        return gone


def _own_directory(parent: Path | None) -> tuple[int, Path]:
    """Make a directory that only this user can enter; remove those of servers that were killed."""
    tried = [env.adapters_directory(), Path(tempfile.gettempdir())] if parent is None else [parent]
    for index, place in enumerate(tried):
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            remove_abandoned(place, PREFIX, _remove_all)
            return make(place, PREFIX)
        except OSError:
            if index + 1 == len(tried):
                raise
    raise AssertionError("the last place raises its error")


def _remove_all(path: Path) -> None:
    shutil.rmtree(path, ignore_errors=True)


def _check_same(source: Path, before: Fingerprint, files: list[OpenFile]) -> None:
    """Raise AdapterFileError unless the files that were copied have stayed what they were.

    Settings and tensors are opened one after the other: without this they could be of two adapters.
    """
    copied = tuple([identity(each.name, os.fstat(each.descriptor)) for each in files])
    if not before == copied == fingerprint(source):
        raise _changed(source)


def _changed(path: Path) -> AdapterFileError:
    return AdapterFileError(CHANGED, f"{shown(path)} changed while it was copied: try again")


def _copy(files: list[OpenFile], target: Path) -> str:
    """Copy opened files into a directory; return the digest of their names and contents."""
    whole = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for file in files:
        digest, left = hashlib.blake2b(digest_size=DIGEST_BYTES), file.num_bytes
        with (target / file.name).open("xb") as copy:
            while part := os.read(file.descriptor, _CHUNK_BYTES):
                left -= len(part)
                if left < 0:
                    break
                digest.update(part)
                copy.write(part)
        if left:
            raise _changed(file.path)
        whole.update(f"{file.name}\0{file.num_bytes}\0".encode() + digest.digest())
    return whole.hexdigest()
