"""The filter of system calls, run by an interpreter of BPF, for every architecture."""

from __future__ import annotations

import errno
import os
import re
import struct
from pathlib import Path

import pytest

from octavo.confine.filter import make_filter
from octavo.confine.system_calls import (
    ARCHITECTURES,
    CLONE,
    CLONE3,
    IOCTL,
    ON_ITSELF,
    OPENS_WITH_FLAGS,
    REFUSED,
    Numbers,
)

ALLOWED = 0x7FFF0000
OWN_NUMBER = 1234
CLONE_THREAD = 0x10000
# Calls of a running engine: read, write, mmap, madvise, futex, epoll_pwait, clock_nanosleep.
USUAL: dict[str, tuple[int, ...]] = {
    "x86_64": (0, 1, 9, 28, 202, 281, 230),
    "aarch64": (63, 64, 222, 233, 98, 22, 115),
}

# The kernel's headers with the numbers: those of Debian's packages for this and for the other kind
# of processor.
HEADERS = {
    "x86_64": ("/usr/include/x86_64-linux-gnu/asm/unistd_64.h",),
    "aarch64": (
        "/usr/aarch64-linux-gnu/include/asm-generic/unistd.h",
        "/usr/include/asm-generic/unistd.h",
    ),
}
NUMBER = re.compile(r"^#define __NR(?:3264)?_(\w+)[ \t]+(\d+)$", re.MULTILINE)


def run_filter(
    name: str,
    number: int,
    arguments: tuple[int, ...] = (),
    *,
    may_read: bool = False,
    may_share: bool = False,
    audit_code: int | None = None,
) -> int:
    """Return the filter's answer to a system call: ALLOWED or an error number."""
    architecture = ARCHITECTURES[name]
    code = architecture.audit_code if audit_code is None else audit_code
    padded = (*arguments, *(0,) * (6 - len(arguments)))
    data = struct.pack("<IIQ6Q", number, code, 0, *padded)
    program = make_filter(architecture, OWN_NUMBER, may_read=may_read, may_share=may_share)
    accumulator, at = 0, 0
    while True:
        operation, if_true, if_false, value = struct.unpack_from("<HBBI", program, 8 * at)
        at += 1
        match operation:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
                continue
            case 0x06:
                return ALLOWED if value == ALLOWED else value - 0x00050000
            case 0x15:
                holds = accumulator == value
            case 0x35:
                holds = accumulator >= value
            case 0x45:
                holds = bool(accumulator & value)
            case _:
                raise AssertionError(f"unknown instruction {operation:#x}")
        at += if_true if holds else if_false


def number_of(name: str, numbers: Numbers) -> int | None:
    return numbers[ARCHITECTURES[name].column]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_listed_call_is_refused_and_usual_ones_are_allowed(name: str) -> None:
    seen = set()
    for calls in REFUSED.values():
        for numbers in calls.values():
            number = number_of(name, numbers)
            if number is not None:
                assert run_filter(name, number) == errno.EPERM
                assert number not in seen, "each number is listed once"
                seen.add(number)
    assert len(seen) > 70
    for number in USUAL[name]:
        assert run_filter(name, number) == ALLOWED


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_numbers_are_those_of_the_kernels_headers(name: str) -> None:
    """Calls that are younger than the headers are left out."""
    found = [path for path in map(Path, HEADERS[name]) if path.is_file()]
    if not found:
        pytest.skip(f"the kernel's headers for {name} are not installed")
    headers = {call: int(number) for call, number in NUMBER.findall(found[0].read_text("utf-8"))}
    listed = {call: numbers for calls in REFUSED.values() for call, numbers in calls.items()}
    listed |= {call: numbers for call, (numbers, _) in OPENS_WITH_FLAGS.items()}
    listed |= {call: numbers for call, (numbers, *_) in ON_ITSELF.items()}
    listed |= {"clone": CLONE, "clone3": CLONE3, "ioctl": IOCTL}
    newest = max(headers.values())
    for call, numbers in listed.items():
        number = number_of(name, numbers)
        if number is None or number <= newest:
            assert headers.get(call) == number, call


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_files_open_at_most_for_reading(name: str) -> None:
    for numbers, index in OPENS_WITH_FLAGS.values():
        number = number_of(name, numbers)
        if number is None:
            continue

        def answer(flags: int, may_read: bool, number: int = number, index: int = index) -> int:
            arguments = (*(0,) * index, flags)
            return run_filter(name, number, arguments, may_read=may_read)

        assert answer(os.O_RDONLY | os.O_CLOEXEC, may_read=True) == ALLOWED
        assert answer(os.O_RDONLY | os.O_CLOEXEC, may_read=False) == errno.EACCES
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_CREAT, os.O_RDONLY | os.O_TRUNC):
            assert answer(flags, may_read=True) == errno.EACCES


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_what_permits_shared_memory_permits_nothing_else(name: str) -> None:
    for calls in REFUSED.values():
        for call, numbers in calls.items():
            number = number_of(name, numbers)
            if number is not None:
                answer = run_filter(name, number, may_share=True)
                assert answer == (ALLOWED if call == "memfd_create" else errno.EPERM)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_calls_about_processes_concern_this_one_alone(name: str) -> None:
    for numbers, index, or_zero in ON_ITSELF.values():
        number = number_of(name, numbers)
        assert number is not None
        assert run_filter(name, number, (*(0,) * index, OWN_NUMBER)) == ALLOWED
        for other in (1, OWN_NUMBER + 1, 2**64 - 1):  # the last is -1: all processes
            assert run_filter(name, number, (*(0,) * index, other)) == errno.EPERM
        expected = ALLOWED if or_zero else errno.EPERM
        assert run_filter(name, number, (*(0,) * index, 0)) == expected


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_threads_begin_and_processes_do_not(name: str) -> None:
    clone, clone3 = number_of(name, CLONE), number_of(name, CLONE3)
    assert clone is not None
    assert clone3 is not None
    assert run_filter(name, clone, (CLONE_THREAD | 0x3D0F00,)) == ALLOWED
    assert run_filter(name, clone, (17,)) == errno.EPERM
    assert run_filter(name, clone3) == errno.ENOSYS  # so that the C library tries `clone`


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_nothing_can_be_typed_into_the_terminal(name: str) -> None:
    ioctl = number_of(name, IOCTL)
    assert ioctl is not None
    assert run_filter(name, ioctl, (2, 0x5401)) == ALLOWED  # whether it is a terminal
    assert run_filter(name, ioctl, (2, 0x5412)) == errno.EPERM
    assert run_filter(name, ioctl, (2, 0x541C)) == errno.EPERM


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_calls_under_other_numbers_are_refused(name: str) -> None:
    """A 32-bit program's `read` could be another call's number here."""
    assert run_filter(name, USUAL[name][0], audit_code=0x40000003) == errno.EPERM
    if ARCHITECTURES[name].has_x32:
        assert run_filter(name, 0x40000000 + USUAL[name][0]) == errno.EPERM
