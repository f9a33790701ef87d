"""The memory that this process has allocated: read often and cheaply, and given back when free."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable

from octavo.observe.machine import give_back_freed

# The fields of glibc's struct mallinfo2, all of them size_t.
_FIELDS = (
    *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
    *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
)


# Of glibc's mallopt, from malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_BYTES = 1 << 20  # a block is larger if it holds a body, a file or a table
_FREE_BYTES = 16 << 20  # as much may stay free between blocks in use
_TRIM_SECONDS = 10.0


class _MallInfo(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def heap_gauge() -> Callable[[], int]:
    """Return a function that returns the bytes of the heap in use; it takes some microseconds.

    Without glibc it returns the resident memory, which seldom becomes less. It opens no file later,
    so that it works in a confined process.
    """
    info = _mallinfo()
    if info is None:
        return _resident_gauge()

    def read() -> int:
        found = info()
        return int(found.uordblks) + int(found.hblkhd)

    return read


def _mallinfo() -> Callable[[], _MallInfo] | None:
    """Return glibc's function that describes the heap; None with another library."""
    try:
        info = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        return None
    info.restype = _MallInfo
    return info


def _resident_gauge() -> Callable[[], int]:
    descriptor = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
    page = os.sysconf("SC_PAGE_SIZE")

    def read() -> int:
        return int(os.pread(descriptor, 256, 0).split()[1]) * page

    return read


def give_large_blocks_back() -> None:
    """Let a large block go back to the system when it is freed.

    By default glibc takes larger and larger blocks from the heap, up to 32 MiB, as soon as one has
    been freed. Then small blocks that live longer lie between large ones, and the heap of a server
    that receives large bodies grows to many times what it holds.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another library, with rules of its own
        return
    mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)  # fixed from now on
    mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)


async def keep_heap_small() -> None:
    """Give the pages of freed blocks back from time to time; without glibc do nothing.

    A request of many prompts takes tens of MiB in small blocks, and a few later ones that stay
    would keep the whole heap resident. A call takes some ms where there is much to give back, and
    at most one where there is nothing.
    """
    info = _mallinfo()
    if info is None:
        return
    import asyncio

    while True:
        await asyncio.sleep(_TRIM_SECONDS)
        if info().fordblks > _FREE_BYTES:
            give_back_freed()
