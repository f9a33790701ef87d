"""Directories of this process alone, each with a lock that ends with the process.

The kernel releases the lock (flock) however the process ends. So a later process can distinguish
abandoned directories from those in use, and remove them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def make(parent: Path, prefix: str) -> tuple[int, Path]:
    """Create a directory; return it with the descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        # Another process may have taken it for abandoned, and removed it, before it was locked.
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            return lock(path), path


def remove_abandoned(parent: Path, prefix: str, remove: Callable[[Path], None]) -> None:
    """Remove the directories that processes of this user left behind when they were killed."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        found = [Path(entry.path) for entry in entries if entry.name.startswith(prefix)]
        for path in found:
            with contextlib.suppress(OSError):  # another user's, in use, or removed by now
                held = lock(path)
                try:
                    remove(path)
                finally:
                    os.close(held)


def lock(path: Path) -> int:
    """Lock a directory; raise OSError if another process or another user owns it.

    Child processes do not inherit the descriptor, so that only this process holds the lock.
    """
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(held).st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(held), os.stat(path, follow_symlinks=False)):
            raise FileNotFoundError(f"{path} was replaced")
    except BaseException:
        os.close(held)
        raise
    return held
