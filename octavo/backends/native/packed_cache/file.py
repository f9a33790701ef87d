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


def write_file(descriptor: int, matrices: Mapping[str, tuple[Bytes, int]]) -> None:
    """Write panels with their checksums; raise OSError where the disk is full."""
    header, offsets, end = _lay_out(matrices)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, end)  # a full disk is noticed before anything is written
    _write(descriptor, memoryview(header), 0)
    for (panels, _), offset in zip(matrices.values(), offsets, strict=True):
        _write(descriptor, panels.data, offset)
    os.ftruncate(descriptor, end)
    os.fsync(descriptor)


def file_bytes(matrices: Mapping[str, tuple[Bytes, int]]) -> int:
    """Return the size of the file of these matrices."""
    return _lay_out(matrices)[2]


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


def _lay_out(matrices: Mapping[str, tuple[Bytes, int]]) -> tuple[bytes, list[int], int]:
    """Return the header, the offset of each matrix, and the size of the file."""
    # The longest header that these matrices can have, so that offsets do not depend on it.
    room = _pages(_START + _DIGEST_BYTES + 64 + sum(len(name) + 80 for name in matrices))
    offsets, end = [], room
    for panels, _ in matrices.values():
        offsets.append(end)
        end = _pages(end + len(panels))
    entries = {
        name: [offset, len(panels), checksum]
        for offset, (name, (panels, checksum)) in zip(offsets, matrices.items(), strict=True)
    }
    text = json.dumps({"bytes": end, "matrices": entries}, separators=(",", ":")).encode()
    digest = blake2b(text, digest_size=_DIGEST_BYTES).digest()
    header = _MAGIC + len(text).to_bytes(8, "little") + digest + text
    assert len(header) <= room
    return header, offsets, end


def _pages(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE


def _write(descriptor: int, left: memoryview, offset: int) -> None:
    while left:
        written = os.pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written
