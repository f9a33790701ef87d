"""Sealed memory: bytes that no process can change any more, passed on as a descriptor."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from typing import Final

_SEALS: Final = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK
_FINAL: Final = _SEALS | fcntl.F_SEAL_SEAL


class NotSealedError(ValueError):
    """A descriptor that is not of sealed memory, or of another size than was said."""


def make_sealed(name: str, num_bytes: int, write: Callable[[int], None]) -> int:
    """Make memory of a size, let `write` fill it by its descriptor, and seal it."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
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
