"""The files that weights come from, and how their contents are compared without reading them whole.

A file counts as the same while its inode, size and times of change are, and so do samples of its
content. No program can set the time of the last change of an inode (`ctime`), so whatever writes
to a file, or puts another in its place, is noticed. On file systems whose inodes and times are
fixed (squashfs, erofs), only the samples tell files of equal size apart. A digest of everything
would take as long as packing. A copy of a file is another file, which costs time alone.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from octavo.backends.native import _native
from octavo.backends.native.panels import MatrixRows

# Times of file systems have steps, within which a second change is not seen.
SETTLED_SECONDS = 2.0
_START_BYTES = 1 << 20  # names, types and places of most files' tensors
_SAMPLES = 64
_SAMPLE_BYTES = 4096
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A mapped file of weights, as it was when it was opened."""

    path: Path
    facts: tuple[int, ...]  # of the inode
    address: int
    num_bytes: int
    digest: bytes

    @classmethod
    def of(cls, path: Path, opened: os.stat_result, content: NDArray[np.uint8]) -> SourceFile:
        facts = _facts(opened)
        found = blake2b(repr(facts).encode(), digest_size=_DIGEST_BYTES)
        found.update(content[:_START_BYTES].data)
        for at in range(0, len(content), max(1, len(content) // _SAMPLES)):
            found.update(content[at : at + _SAMPLE_BYTES].data)
        return cls(path, facts, content.ctypes.data, len(content), found.digest())

    def is_unchanged(self, now: float) -> bool:
        """Return whether the path still leads to what was opened, settled long enough ago."""
        try:
            found = os.stat(self.path)
        except OSError:
            return False
        last = max(found.st_mtime, found.st_ctime)
        return _facts(found) == self.facts and abs(now - last) > SETTLED_SECONDS


def _facts(found: os.stat_result) -> tuple[int, ...]:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


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
            kind = (layout.name, layout.group, layout.group_bytes, part.inputs)
            place = (part.rows.shape, part.rows.strides, self._place(part.rows))
            _add(found, (*kind, *place), part.order, part.columns)
        return found.hexdigest()

    def _place(self, rows: NDArray[np.uint8]) -> tuple[str, int]:
        """Return the file and offset of rows; of computed rows, a checksum of their content."""
        address = rows.ctypes.data
        number = bisect_right(self._starts, address) - 1
        if number >= 0:
            file = self._files[number]
            if address < file.address + file.num_bytes:
                return file.digest.hex(), address - file.address
        return "", _native.checksum(np.ascontiguousarray(rows).reshape(-1))


def _add(found: blake2b, facts: tuple[object, ...], *orders: NDArray[np.int64] | None) -> None:
    """Add facts and orders to a digest, so that no two lists of them are written alike."""
    sizes = tuple(None if order is None else len(order) for order in orders)
    found.update(repr((facts, sizes)).encode())
    for order in orders:
        if order is not None:
            found.update(np.ascontiguousarray(order, np.int64).data)
