"""The files that weights come from, and how it is noticed that they are others.

Where a file system keeps the time of the last change of an inode (`ctime`), which no program can
set, a file is the same while its file system, inode, size and times are, and so are samples of its
content. That holds for the file systems listed here, and for times with a fraction of a second:
those that the maker of an image fixed have none. Elsewhere (squashfs and erofs, whose times are the
image's; overlay, which shows those of layers; network file systems and FUSE, whose servers answer
anything) a file is known by a checksum of its whole content and by nothing else. That takes as long
as to read it from memory, and also recognises a copy.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from bisect import bisect_right
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from octavo.backends.made_rows import MadeRows
from octavo.backends.native import _native
from octavo.backends.native.panels import MatrixRows
from octavo.observe.machine import num_cores

# Times of file systems have steps, within which a second change is not seen.
SETTLED_SECONDS = 2.0
_START_BYTES = 1 << 20  # names, types and places of most files' tensors
_SAMPLES = 64
_SAMPLE_BYTES = 4096
_DIGEST_BYTES = 16
_PIECE_BYTES = 16 << 20  # that a thread adds up at a time
_MOST_THREADS = 16
_STATFS_WORDS = 64  # more than `struct statfs` has
# By the magic numbers of statfs(2): ext2 to ext4, XFS, Btrfs, F2FS, tmpfs, ZFS, bcachefs.
_KEEPING_TIMES = frozenset(
    {0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, 0x01021994, 0x2FC12FC1, 0xCA451A4E}
)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A mapped file of weights, as it was when it was opened."""

    path: Path
    facts: tuple[int, ...]  # of the inode
    address: int
    num_bytes: int
    digest: bytes
    is_whole: bool  # the digest is of the whole content, and of nothing else

    @classmethod
    def of(cls, path: Path, opened: os.stat_result, content: NDArray[np.uint8]) -> SourceFile:
        facts = _facts(path, opened)
        is_whole = not keeps_times(path, opened)
        digest = _whole_digest(content) if is_whole else _sampled_digest(facts, content)
        return cls(path, facts, content.ctypes.data, len(content), digest, is_whole)

    def is_unchanged(self, now: float) -> bool:
        """Return whether the path still leads to what was opened, settled long enough ago."""
        try:
            with self.path.open("rb") as file:
                found = os.fstat(file.fileno())
                last = max(found.st_mtime, found.st_ctime)
                if _facts(self.path, found) != self.facts or abs(now - last) <= SETTLED_SECONDS:
                    return False
                if not self.is_whole:
                    return True
                with mmap.mmap(file.fileno(), self.num_bytes, access=mmap.ACCESS_READ) as content:
                    mapped = np.frombuffer(content, np.uint8)
                    digest = _whole_digest(mapped)
                    del mapped  # a mapping that an array refers to cannot be closed
                    return digest == self.digest
        except (OSError, ValueError):  # ValueError: it has become shorter than it was
            return False


def keeps_times(path: Path, opened: os.stat_result) -> bool:
    """Return whether the time of a file's last change is the kernel's, and can be trusted."""
    return opened.st_ctime_ns % 1_000_000_000 != 0 and file_system(path) in _KEEPING_TIMES


def file_system(path: Path) -> int:
    """Return the magic number of a path's file system; 0 where the system does not say."""
    if not sys.platform.startswith("linux"):
        return 0
    found = (ctypes.c_long * _STATFS_WORDS)()  # its first word is the number
    if ctypes.CDLL(None, use_errno=True).statfs(os.fsencode(path), found) != 0:
        return 0
    return int(found[0]) & 0xFFFF_FFFF


def _facts(path: Path, found: os.stat_result) -> tuple[int, ...]:
    # The identity of a file system, unlike the number of its device, stays when the system starts.
    identity = os.statvfs(path).f_fsid
    return identity, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _sampled_digest(facts: tuple[int, ...], content: NDArray[np.uint8]) -> bytes:
    found = blake2b(repr(facts).encode(), digest_size=_DIGEST_BYTES)
    found.update(content[:_START_BYTES].data)
    for at in range(0, len(content), max(1, len(content) // _SAMPLES)):
        found.update(content[at : at + _SAMPLE_BYTES].data)
    return found.digest()


def _whole_digest(content: NDArray[np.uint8]) -> bytes:
    """Return a digest of everything, at the speed at which threads read memory."""
    places = range(0, len(content), _PIECE_BYTES)
    with ThreadPoolExecutor(min(num_cores()[0], _MOST_THREADS)) as threads:
        pieces = (content[at : at + _PIECE_BYTES] for at in places)
        sums = threads.map(_native.checksum, pieces)
        found = blake2b(f"whole {len(content)}".encode(), digest_size=_DIGEST_BYTES)
        for each in sums:
            found.update(each.to_bytes(8, "little"))
    return found.digest()


class Sources:
    """The files of a model's weights."""

    def __init__(self, files: Iterable[SourceFile]) -> None:
        self._files = sorted(files, key=lambda file: file.address)
        self._starts = [file.address for file in self._files]

    @property
    def digest(self) -> bytes:
        return b"".join(sorted(file.digest for file in self._files))

    def check(self, now: float) -> None:
        """Raise OSError for files that changed; `now` is the time of a file that was just made."""
        for file in self._files:
            if not file.is_unchanged(now):
                raise OSError(f"{file.path} has just been changed")

    def recipe(self, rows: MatrixRows) -> str:
        """Return what a matrix is made of and how, in short: equal recipes give equal panels.

        It has places in the files and the order of rows, whatever the settings that lead to them.
        """
        found = blake2b(digest_size=_DIGEST_BYTES)
        _add(found, (rows.format.name, rows.inputs), rows.order)
        for part in rows.parts:
            layout = part.layout
            factor = b"" if layout.factor is None else layout.factor.tobytes()
            kind = (
                layout.name,
                layout.group,
                layout.group_bytes,
                layout.table,
                factor,
                part.inputs,
            )
            if isinstance(part.rows, MadeRows):
                tensors, window = part.rows.tensors, part.rows.window
                facts = (*window, *map(self._fact, structs.astuple(tensors)))
                _add(found, (*kind, *facts), part.order, part.columns)
            else:
                _add(found, (*kind, *self._fact(part.rows)), part.order, part.columns)
        return found.hexdigest()

    def _fact(self, value: object) -> tuple[object, ...]:
        """Return what a value is, of an array its place."""
        if isinstance(value, np.ndarray):
            return value.dtype.name, value.shape, value.strides, self._place(value)
        return (value,)

    def _place(self, rows: NDArray[Any]) -> tuple[str, int]:
        """Return the file and offset of rows; of computed rows, a checksum of their content."""
        address = rows.ctypes.data
        number = bisect_right(self._starts, address) - 1
        if number >= 0:
            file = self._files[number]
            if address < file.address + file.num_bytes:
                return file.digest.hex(), address - file.address
        return "", _native.checksum(np.ascontiguousarray(rows).reshape(-1).view(np.uint8))


def _add(found: blake2b, facts: tuple[object, ...], *orders: NDArray[np.int64] | None) -> None:
    """Add facts and orders to a digest, so that no two lists of them are written alike."""
    sizes = tuple(None if order is None else len(order) for order in orders)
    found.update(repr((facts, sizes)).encode())
    for order in orders:
        if order is not None:
            found.update(np.ascontiguousarray(order, np.int64).data)
