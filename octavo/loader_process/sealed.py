"""Sealed memory: bytes that no process can change any more, passed on as a descriptor."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable
from typing import Final

_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
_FINAL: Final = _SEALS | fcntl.F_SEAL_SEAL


class NotSealedError(ValueError):
    """A descriptor that is not of sealed memory, or of another size than was said."""


class SpareMemory:
    """Empty memory for the next file, taken while there is nothing else to do.

    To take its pages is half the time of a copy. It is as large as the last file, within a bound.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._last_bytes = 0
        self._descriptor: int | None = None

    @property
    def is_there(self) -> bool:
        return self._descriptor is not None

    def fill(self) -> None:
        """Take memory, unless it is there; where the system has none left, the next file waits."""
        if self.is_there or not 0 < self._last_bytes <= self._most_bytes:
            return
        with contextlib.suppress(OSError):
            descriptor = _new("octavo-tensors")
            try:
                os.posix_fallocate(descriptor, 0, self._last_bytes)
            except OSError:
                os.close(descriptor)
                raise
            self._descriptor = descriptor

    def take(self, num_bytes: int) -> int | None:
        """Return what was taken, for a file of a size; None if there is nothing."""
        self._last_bytes = num_bytes
        taken, self._descriptor = self._descriptor, None
        return taken


def _new(name: str) -> int:
    return os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)


def make_sealed(
    name: str, num_bytes: int, write: Callable[[int], None], spare: int | None = None
) -> int:
    """Make memory of a size, let `write` fill it by its descriptor, and seal it.

    `spare` is empty memory to use for it.
    """
    descriptor = _new(name) if spare is None else spare
    try:
        os.ftruncate(descriptor, num_bytes)
        write(descriptor)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _FINAL)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def check_sealed(descriptor: int, num_bytes: int) -> None:
    """Raise NotSealedError unless this is memory of a size that can neither change nor shrink."""
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise NotSealedError("what was passed is no memory that can be sealed") from None
    if seals & _SEALS != _SEALS:
        raise NotSealedError("the memory that was passed is not sealed: it could still change")
    size = os.fstat(descriptor).st_size
    if size != num_bytes:
        raise NotSealedError(f"the memory that was passed has {size:,} bytes, not {num_bytes:,}")
