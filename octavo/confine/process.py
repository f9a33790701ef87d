"""Confines this process: what can be taken at its start, and what only when all is loaded."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter
from pathlib import Path

from octavo.confine.filter import install_filter
from octavo.confine.listeners import close_ports

_WITHOUT_FILES = (BuiltinImporter, FrozenImporter)
_OOM_SCORE_ADJ = 500  # the front end has 0, and prompt workers have 1000
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38


def give_up_privileges() -> None:
    """Give up new privileges, core dumps, and being read by other processes of the same user.

    Call it before the process has threads: each thread inherits the first of these.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # memory holds prompts
    if sys.platform.startswith("linux"):
        control = ctypes.CDLL(None, use_errno=True).prctl
        control(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        control(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def die_before_parent() -> None:
    """Make the kernel end this process before the front end when memory runs out.

    All requests continue in another engine, but nothing replaces the front end.
    """
    with contextlib.suppress(OSError):  # not every container allows it
        Path("/proc/self/oom_score_adj").write_text(str(_OOM_SCORE_ADJ))


def confine(*, may_read: bool, may_share: bool = False) -> str | None:
    """Refuse this process files, network and other processes from now on, in all its threads.

    What it has open stays usable; `may_read` permits it to open further files for reading, and
    `may_share` to make memory that it passes to a process it is connected to. Without the former no
    further module can be imported: the attempt is an ordinary ImportError, whose text names no path
    of this machine. Ports at which the process listens let no connection in any more. Return why
    the kernel does not support this, or None.
    """
    close_ports()
    missing = install_filter(may_read=may_read, may_share=may_share)
    if missing is None and not may_read:
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder in _WITHOUT_FILES]
    return missing
