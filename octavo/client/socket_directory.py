"""A directory for the socket that only this user can enter, for the lifetime of this process."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from octavo import env
from octavo.locked_directory import make, remove_abandoned

PREFIX = "octavo-engine-"
SOCKET = "engine.sock"
MAX_PATH_BYTES = 100  # of a unix socket; the system's limit is 107


class SocketDirectory:
    """A directory in use, and the path of the socket in it."""

    def __init__(self) -> None:
        parent = env.runtime_directory()
        if parent is None or not os.access(parent, os.W_OK | os.X_OK):
            parent = Path(tempfile.gettempdir())
        remove_abandoned_sockets(parent)
        self._lock, self.path = make(parent, PREFIX)
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


def remove_abandoned_sockets(parent: Path) -> None:
    """Remove the directories whose processes were killed, unless they contain anything else."""
    remove_abandoned(parent, PREFIX, _remove)


def _remove(path: Path) -> None:
    """Remove a directory, unless it contains anything but the socket."""
    (path / SOCKET).unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        path.rmdir()
