"""The filter of system calls (seccomp) of a confined process, and its installation.

The filter is a program for the kernel's classic BPF. It names what is refused; everything else is
allowed, so that no library fails because of a harmless call that this file does not know. Refused
calls fail with an error; they do not end the process. Calls that are always allowed cost nothing:
since Linux 5.11 the kernel knows them without running the program.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Iterator
from typing import Any

from octavo.confine.system_calls import (
    ARCHITECTURES,
    CLONE,
    CLONE3,
    IOCTL,
    ON_ITSELF,
    OPENS_WITH_FLAGS,
    REFUSED,
    SHARING,
    Architecture,
    Numbers,
)

_SET_MODE_FILTER, _GET_ACTION_AVAIL = 1, 2
_FLAG_ALL_THREADS = 1
_FLAG_KEEP_SPECULATION = 4  # else older kernels slow the whole process down

# Classic BPF: load a word of seccomp_data, compare, return.
_LOAD, RETURN = 0x20, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_ANY_BIT = 0x15, 0x35, 0x45
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENTS = 0, 4, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_X32_BIT = 0x40000000

_CLONE_THREAD = 0x00010000
_TERMINAL_INPUT = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX: typing into the operator's terminal
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

Instruction = tuple[int, int, int, int]  # code, jump if true, jump if false, value


class SockFprog(ctypes.Structure):
    """A program as the kernel takes it: the number of its instructions, and their bytes."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def make_filter(
    architecture: Architecture, own_number: int, *, may_read: bool, may_share: bool = False
) -> bytes:
    """Return the program for a process with this number.

    `may_read`: it may open files to read; `may_share`: it may make memory that others can map.
    """
    instructions = list(_instructions(architecture, own_number, may_read, may_share))
    return b"".join(struct.pack("<HBBI", *each) for each in instructions)


def _instructions(
    architecture: Architecture, own_number: int, may_read: bool, may_share: bool
) -> Iterator[Instruction]:
    yield _LOAD, 0, 0, _AT_ARCHITECTURE
    yield _IF_EQUAL, 1, 0, architecture.audit_code
    yield _refuse(errno.EPERM)
    yield _LOAD, 0, 0, _AT_NUMBER
    if architecture.has_x32:
        yield _IF_AT_LEAST, 0, 1, _X32_BIT
        yield _refuse(errno.EPERM)

    def number_of(numbers: Numbers) -> int | None:
        return numbers[architecture.column]

    for calls in REFUSED.values():
        for name, numbers in calls.items():
            if name not in SHARING or not may_share:
                yield from _case(number_of(numbers), _refuse(errno.EPERM))
    # The library then tries `clone`, whose flags a filter can see.
    yield from _case(number_of(CLONE3), _refuse(errno.ENOSYS))
    for numbers, flags in OPENS_WITH_FLAGS.values():
        checks = [(_IF_ANY_BIT, 0, 1, _WRITES)] if may_read else []
        body = [_load_argument(flags), *checks, _refuse(errno.EACCES), (RETURN, 0, 0, _ALLOW)]
        yield from _case(number_of(numbers), *body)
    for numbers, index, or_zero in ON_ITSELF.values():
        allowed = (own_number, 0) if or_zero else (own_number,)
        checks = [(_IF_EQUAL, 0, 1, value) for value in allowed]
        body = [_load_argument(index)]
        for check in checks:
            body += [check, (RETURN, 0, 0, _ALLOW)]
        yield from _case(number_of(numbers), *body, _refuse(errno.EPERM))
    body = [_load_argument(0), (_IF_ANY_BIT, 0, 1, _CLONE_THREAD), (RETURN, 0, 0, _ALLOW)]
    yield from _case(number_of(CLONE), *body, _refuse(errno.EPERM))
    body = [_load_argument(1)]
    for value in _TERMINAL_INPUT:
        body += [(_IF_EQUAL, 0, 1, value), _refuse(errno.EPERM)]
    yield from _case(number_of(IOCTL), *body, (RETURN, 0, 0, _ALLOW))
    yield RETURN, 0, 0, _ALLOW


def _case(number: int | None, *body: Instruction) -> Iterator[Instruction]:
    """Run `body`, which must end with a return, if the call has this number."""
    if number is not None:
        yield _IF_EQUAL, 0, len(body), number
        yield from body


def _load_argument(index: int) -> Instruction:
    return _LOAD, 0, 0, _AT_ARGUMENTS + 8 * index  # its lower half: these are all small numbers


def _refuse(error: int) -> Instruction:
    return RETURN, 0, 0, _ERROR | error


def why_unavailable() -> str | None:
    """Return why this system has no filters for system calls, or None if it has."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no filters for system calls"
    architecture = ARCHITECTURES.get(platform.machine())
    if architecture is None or sys.byteorder != "little":
        return f"Octavo has no filter of system calls for the architecture {platform.machine()}"
    wanted = ctypes.c_uint32(_ERROR)
    return _call(architecture, _GET_ACTION_AVAIL, 0, ctypes.byref(wanted))


def install_filter(*, may_read: bool, may_share: bool = False) -> str | None:
    """Install the filter for all threads of this process; return why that is not possible."""
    missing = why_unavailable()
    if missing is not None:
        return missing
    architecture = ARCHITECTURES[platform.machine()]
    program = make_filter(architecture, os.getpid(), may_read=may_read, may_share=may_share)
    described = SockFprog(len(program) // 8, program)
    flags = _FLAG_ALL_THREADS | _FLAG_KEEP_SPECULATION
    return _call(architecture, _SET_MODE_FILTER, flags, ctypes.byref(described))


def _call(architecture: Architecture, operation: int, flags: int, data: Any) -> str | None:
    call = ctypes.CDLL(None, use_errno=True).syscall
    if call(architecture.seccomp, operation, flags, data) == 0:
        return None
    return f"the kernel refuses filters of system calls: {os.strerror(ctypes.get_errno())}"
