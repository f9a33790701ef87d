"""The part of a model's files that the operating system keeps in memory."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable


def drop_from_cache(paths: Iterable[str]) -> None:
    """Let the system forget what it keeps of these files, unless a process still uses it."""
    if not hasattr(os, "posix_fadvise"):  # not on every system
        return
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
