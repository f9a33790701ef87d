"""A directory for the socket that only this user can enter, for the lifetime of this process.

The process holds a lock (flock) on its directory, which the kernel releases however the process
ends. So a later process can distinguish abandoned directories from those in use, and removes them.
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
    """A directory in use, and the path of the socket in it."""

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
                f"the socket's path {self.socket} has {len(os.fsencode(self.socket))} bytes, and "
                f"at most {MAX_PATH_BYTES} are possible; set XDG_RUNTIME_DIR or TMPDIR to a "
                "directory with a shorter path"
            )

    def close(self) -> None:
        if self._lock >= 0:
            _remove(self.path)
            os.close(self._lock)
            self._lock = -1


def remove_abandoned(parent: Path) -> None:
    """Remove the directories that processes of this user left behind when they were killed."""
    with contextlib.suppress(OSError), os.scandir(parent) as entries:
        found = [Path(entry.path) for entry in entries if entry.name.startswith(PREFIX)]
        for path in found:
            with contextlib.suppress(OSError):  # another user's, in use, or removed by now
                lock = _lock(path)
                try:
                    _remove(path)
                finally:
                    os.close(lock)


def _make(parent: Path) -> tuple[int, Path]:
    """Create a directory; return it with the descriptor that holds its lock."""
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        # Another process may have taken it for abandoned, and removed it, before it was locked.
        with contextlib.suppress(FileNotFoundError, BlockingIOError):
            return _lock(path), path


def _lock(path: Path) -> int:
    """Lock a directory; raise OSError if another process or another user owns it.

    Child processes do not inherit the descriptor, so that only this process holds the lock.
    """
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(lock).st_uid != os.getuid():
            raise PermissionError(f"{path} belongs to another user")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if not os.path.samestat(os.fstat(lock), os.stat(path, follow_symlinks=False)):
            raise FileNotFoundError(f"{path} was replaced")
    except BaseException:
        os.close(lock)
        raise
    return lock


def _remove(path: Path) -> None:
    """Remove a directory, unless it contains anything but the socket."""
    (path / SOCKET).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.rmdir()
