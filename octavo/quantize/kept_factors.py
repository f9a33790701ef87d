"""The factors that a run has chosen, on the disk, for the run that continues it."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from octavo.quantize.packer import Floats

_CHECKSUM_BYTES = 4


class KeptFactors:
    """A file of the factors of a plan's first sites, in their order, each with a checksum.

    A run that is killed, or a loss of power, may leave damage at the file's end. Whatever follows
    the last whole factors is dropped when they are read.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, sizes: Sequence[int]) -> list[Floats]:
        """Return the factors that are there; `sizes` are those of the plan's sites.

        What is no file, such as a link, is removed: factors are then chosen again.
        """
        if not self._path.is_file() or self._path.is_symlink():
            self._path.unlink(missing_ok=True)
            return []
        with self._open(os.O_RDWR) as file:
            content = file.read()
            found: list[Floats] = []
            end = 0
            for size in sizes:
                begin = end + _CHECKSUM_BYTES
                values = content[begin : begin + 4 * size]
                if len(values) < 4 * size or _checksum(values) != content[end:begin]:
                    break
                found.append(np.frombuffer(values, np.float32))
                end = begin + 4 * size
            file.truncate(end)
        return found

    def add(self, factors: Floats) -> None:
        """Keep the factors of the next site."""
        values = np.ascontiguousarray(factors, np.float32).tobytes()
        with self._open(os.O_RDWR | os.O_CREAT | os.O_APPEND) as file:
            file.write(_checksum(values) + values)

    def _open(self, flags: int) -> BinaryIO:
        descriptor = os.open(self._path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        return os.fdopen(descriptor, "r+b")


def _checksum(values: bytes) -> bytes:
    return zlib.crc32(values).to_bytes(_CHECKSUM_BYTES, "little")
