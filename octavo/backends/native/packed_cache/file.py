"""The file of a model's packed weights: a header, and panels that begin where pages begin.

The header is a magic of 8 bytes, the length of a JSON text (8 bytes), its digest (16 bytes),
and the text: {"bytes": of the whole file, "matrices": {recipe: [offset, bytes, checksum]}}.
"""

from __future__ import annotations

import json
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_MAGIC = b"octPACK1"
_PAGE = 4096
_START = len(_MAGIC) + 8
_DIGEST_BYTES = 16
_MOST_HEADER_BYTES = 64 << 20  # more than half a million matrices


class DamagedFileError(ValueError):
    """An error for a file that is not what was once written."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One matrix of a file."""

    panels: Bytes  # private: who writes to it does not change the file
    checksum: int


class LaidOutFile:
    """A file that can be written: where each matrix lies in it, and its size."""

    def __init__(self, matrices: Mapping[str, tuple[Bytes, int]]) -> None:
        # The longest header that these matrices can have, so that offsets do not depend on it.
        room = _pages(_START + _DIGEST_BYTES + 64 + sum(len(name) + 80 for name in matrices))
        entries: dict[str, list[int]] = {}
        self._places: list[tuple[int, Bytes]] = []
        end = room
        for name, (panels, checksum) in matrices.items():
            entries[name] = [end, len(panels), checksum]
            self._places.append((end, panels))
            end = _pages(end + len(panels))
        self.num_bytes = end
        text = json.dumps({"bytes": end, "matrices": entries}, separators=(",", ":")).encode()
        digest = blake2b(text, digest_size=_DIGEST_BYTES).digest()
        self._header = _MAGIC + len(text).to_bytes(8, "little") + digest + text
        assert len(self._header) <= room

    def write(self, descriptor: int) -> None:
        """Write the header and all panels to a file of this size; raise OSError on a full disk."""
        if hasattr(os, "posix_fallocate"):  # a full disk is noticed before anything is written
            os.posix_fallocate(descriptor, 0, self.num_bytes)
        _write(descriptor, memoryview(self._header), 0)
        for offset, panels in self._places:
            _write(descriptor, panels.data, offset)
        os.fsync(descriptor)


def map_file(descriptor: int) -> dict[str, Entry]:
    """Map a file, and return its matrices by recipe; their panels are not read yet."""
    size = os.fstat(descriptor).st_size
    start = os.pread(descriptor, _START + _DIGEST_BYTES, 0)
    length = int.from_bytes(start[len(_MAGIC) : _START], "little")
    if not start.startswith(_MAGIC) or not 0 < length <= min(size, _MOST_HEADER_BYTES):
        raise DamagedFileError("its header is damaged")
    text = os.pread(descriptor, length, _START + _DIGEST_BYTES)
    if blake2b(text, digest_size=_DIGEST_BYTES).digest() != start[_START:]:
        raise DamagedFileError("its header is damaged")
    header = json.loads(text)
    if size != header["bytes"]:
        raise DamagedFileError(f"it has {size:,} bytes instead of {header['bytes']:,}")
    mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_COPY)
    if hasattr(mmap, "MADV_WILLNEED"):
        mapped.madvise(mmap.MADV_WILLNEED)
    whole = np.frombuffer(mapped, np.uint8)
    return {
        recipe: Entry(whole[offset : offset + num_bytes], checksum)
        for recipe, (offset, num_bytes, checksum) in header["matrices"].items()
    }


def _pages(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE


def _write(descriptor: int, left: memoryview, offset: int) -> None:
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written
