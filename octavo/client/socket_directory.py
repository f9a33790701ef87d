"""A directory that only this user can enter, for as long as this process lives.

Its owner holds the kernel's lock on it (flock), which ends with the process, whatever ends that.
So whoever starts next can tell those that were left behind from those in use, and removes them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from pathlib import Path

from octavo import env

PREFIX = "octavo-engine-"
SOCKET = "engine.sock"
MAX_PATH_BYTES = 100  # of a unix socket; the system's limit is 107


class SocketDirectory:
    """One in use, and the path of the socket in it."""

    def __init__(self) -> None:
        parent = env.runtime_directory()
        if parent is None or not os.access(parent, os.W_OK | os.X_OK):
            parent = Path(tempfile.gettempdir())
        remove_abandoned(parent)
        self._lock, self.path = _make(parent)
        self.socket = self.path / SOCKET
        if len(os.fsencode(self.socket)) > MAX_PATH_BYTES:
            self.close()
            raise OSError(
                f"{self.path} is too long a path for a socket (at most {MAX_PATH_BYTES} bytes); "
                "set XDG_RUNTIME_DIR or TMPDIR to a shorter directory"
            )

    def close(self) -> None:
        """Remove it."""
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1


def remove_abandoned(parent: Path) -> None:
    """Remove what processes of this user that have ended had to leave behind."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        found = [Path(entry.path) for entry in entries if entry.name.startswith(PREFIX)]
        for path in found:
            with contextlib.suppress(OSError):  # another user's, in use, or gone by now
                lock = _lock(path)
                try:
                    _remove(path)
                finally:
                    os.close(lock)


def _make(parent: Path) -> tuple[int, Path]:
    """A fresh one, and the descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        # Before it was locked somebody else may have taken it for an abandoned one.
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            return _lock(path), path


def _lock(path: Path) -> int:
    """Take the lock; BlockingIOError if another process has it, OSError if it is not ours to take.

    No child inherits the descriptor, so that nothing but this process holds the lock.
    """
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(lock).st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to somebody else")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), os.stat(path, follow_symlinks=False)):
            raise FileNotFoundError(f"{path} is another by now")
    except BaseException:
        os.close(lock)
        raise
    return lock


def _remove(path: Path) -> None:
    """The directory, if there is nothing in it but what belongs there."""
    (path / SOCKET).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.rmdir()
