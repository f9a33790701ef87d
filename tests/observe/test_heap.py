"""The gauge of the heap follows what is allocated and freed."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import mmap
import subprocess
import sys

import pytest

from octavo.observe import heap

_HAS_GLIBC = hasattr(ctypes.CDLL(None), "mallinfo2")


@pytest.mark.skipif(not _HAS_GLIBC, reason="there is no glibc")
def test_it_shows_a_large_block() -> None:
    read = heap.heap_gauge()
    gc.collect()  # so that what other tests left is not freed meanwhile
    before = read()
    block = bytearray(b"x") * (64 << 20)
    assert read() - before > 40 << 20
    del block
    assert read() - before < 32 << 20


def test_without_glibc_it_shows_resident_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    read = heap.heap_gauge()
    gc.collect()
    before = read()
    # Its own mapping: the allocator may give a block of memory that was resident before.
    with mmap.mmap(-1, 64 << 20) as block:
        block.write(b"x" * (64 << 20))
        assert read() - before > 40 << 20
    assert read() - before < 32 << 20


# Prints the bytes of large blocks outside of the heap while one is held, twice: glibc's own rule
# moves the second block into the heap, since one of its size has been freed.
_TWICE = """
import ctypes, sys
from octavo.observe import heap
if sys.argv[1] == "True":
    heap.give_large_blocks_back()
info = ctypes.CDLL(None).mallinfo2
info.restype = heap._MallInfo
for _ in range(2):
    block = bytes(8 << 20)
    print(info().hblkhd >> 20)
    del block
"""


@pytest.mark.skipif(not _HAS_GLIBC, reason="there is no glibc")
@pytest.mark.parametrize("gives_back", [True, False])
def test_large_blocks_are_given_back(gives_back: bool) -> None:
    command = [sys.executable, "-c", _TWICE, str(gives_back)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second = map(int, run.stdout.split())
    assert first >= 8
    assert (second >= 8) is gives_back


# Prints the resident MiB after 64 MiB of small blocks have been freed, but for some, and again when
# the heap has been kept small for a moment.
_SPARSE = """
import asyncio
from octavo.observe import heap
heap._TRIM_SECONDS = 0.01
read = heap._resident_gauge()
blocks = [bytes(20_000) for _ in range(3200)]
kept = blocks[::100]
del blocks
print(read() >> 20)
async def main():
    task = asyncio.ensure_future(heap.keep_heap_small())
    while read() >> 20 > FEW:
        await asyncio.sleep(0.01)
    task.cancel()
asyncio.run(main())
print(read() >> 20)
"""


@pytest.mark.skipif(not _HAS_GLIBC, reason="there is no glibc")
def test_pages_between_blocks_in_use_are_given_back() -> None:
    before = _resident_mib()
    command = [sys.executable, "-c", _SPARSE.replace("FEW", str(before + 24))]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    sparse, small = map(int, run.stdout.split())
    assert sparse > before + 48
    assert small <= before + 24


def _resident_mib() -> int:
    """Return what a process takes that has loaded the same modules."""
    text = "from octavo.observe import heap; print(heap._resident_gauge()() >> 20)"
    run = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return int(run.stdout)


def test_without_glibc_nothing_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    asyncio.run(heap.keep_heap_small())
    heap.give_large_blocks_back()
