"""Restricts a process to reading below a few directories (Landlock), for as long as it lives."""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

# The same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_GET_VERSION = 1
_RULE_PATH_BENEATH = 1
_READ_FILE = 1 << 2
# The rights that each version of Landlock can take from a process: those of files, of the network,
# and towards other processes.
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 5: 16}  # how many, from the lowest bit on
_NETWORK_RIGHTS = {4: 2}
_SCOPES = {6: 2}


def restrict_reading(directories: Iterable[Path]) -> str | None:
    """Let this thread, and those that it starts, open files below these directories alone.

    They may be read there, and nothing else: no file can be written, made, listed or executed. What
    is open stays usable. Call it before there are other threads, after new privileges have been
    given up. Return why the kernel does not support this, or None. Raise OSError for a directory
    that cannot be opened.
    """
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no Landlock"
    with contextlib.ExitStack() as opened:
        descriptors = []
        for directory in directories:
            descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, descriptor)
            descriptors.append(descriptor)
        try:
            _restrict(descriptors)
        except OSError as error:
            return f"the kernel has no Landlock for this process: {error.strerror}"
    return None


def _restrict(descriptors: Iterable[int]) -> None:
    version = _call(_CREATE_RULESET, None, 0, _GET_VERSION)
    handled = [(1 << _at(version, sizes)) - 1 for sizes in (_FILE_RIGHTS, _NETWORK_RIGHTS, _SCOPES)]
    num_known = 1 if version < 4 else 2 if version < 6 else 3
    attributes = struct.pack("<QQQ", *handled)[: 8 * num_known]
    ruleset = _call(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        for descriptor in descriptors:
            rule = struct.pack("<Qi", _READ_FILE, descriptor)
            _call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _at(version: int, sizes: dict[int, int]) -> int:
    """Return the size that a version of Landlock has, which is that of the last change."""
    return next((size for since, size in reversed(sizes.items()) if since <= version), 0)


def _call(number: int, *arguments: object) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    wide = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result: int = call(ctypes.c_long(number), *wide)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
