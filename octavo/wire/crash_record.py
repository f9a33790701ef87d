"""Shared memory that outlives the engine: the requests in the step that it died in.

Before each step the engine writes the numbers of the requests in it; the front end, which maps the
same memory, reads them after a crash. A message could be lost in transit when the process is
killed; shared memory cannot. There are two halves, and one byte that says which of them is valid,
so that a crash in the middle of a write leaves the previous half intact.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from struct import Struct

MAX_NUMBERS = 4095
_HALF_BYTES = 8 * (1 + MAX_NUMBERS)
_HEADER_BYTES = 8
SIZE_BYTES = _HEADER_BYTES + 2 * _HALF_BYTES
_COUNT = Struct("<Q")


class CrashRecord:
    """The shared memory, as either process sees it."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE_BYTES)
        self._last: tuple[int, ...] | None = None

    @staticmethod
    def make() -> int:
        """Create the memory; return its descriptor, which the engine inherits."""
        descriptor = os.memfd_create("octavo-crash-record", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, SIZE_BYTES)
        return descriptor

    def write(self, numbers: Sequence[int]) -> None:
        """Record the requests of the next step; leave out what does not fit."""
        kept = tuple(numbers[:MAX_NUMBERS])
        if kept == self._last:
            return
        self._last = kept
        memory, half = self._memory, 1 - (self._memory[0] & 1)
        begin = _HEADER_BYTES + half * _HALF_BYTES
        packed = Struct(f"<{1 + len(kept)}Q").pack(len(kept), *kept)
        memory[begin : begin + len(packed)] = packed
        memory[0] = half

    def read(self) -> tuple[int, ...]:
        """Return the requests that were recorded last."""
        begin = _HEADER_BYTES + (self._memory[0] & 1) * _HALF_BYTES
        (count,) = _COUNT.unpack_from(self._memory, begin)
        count = min(count, MAX_NUMBERS)
        return Struct(f"<{count}Q").unpack_from(self._memory, begin + _COUNT.size)

    def close(self) -> None:
        """Release this process's mapping of the memory."""
        self._memory.close()
