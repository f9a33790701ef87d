"""A step without enough memory fails with a clear error, and later steps are not affected."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from msgspec.structs import replace

from octavo.backends.base import StepSize
from octavo.observe.machine import own_bytes
from tests.backends.native.test_team import run_alone
from tests.backends.native.tiny import make_batch, make_native
from tests.runner.tiny import FULL, VOCABULARY

# The address space is bounded to its present size, so that the system refuses scratch memory.
SCRIPT = """
import resource
import numpy as np
from pathlib import Path
from tests.backends.native.tiny import make_batch, make_native
from tests.runner.tiny import FULL

def allow(num_bytes):
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (num_bytes, hard))

backend = make_native(FULL, 160, 16, num_threads=1)
small, large = make_batch((1, 0, 8)), make_batch((2, 0, 600))
expected = backend.forward(small).logits.copy()
{before}
allow(int(Path("/proc/self/statm").read_text().split()[0]) * 4096)
for _ in range(2):
    try:
        backend.forward(large)
        print("not refused")
    except MemoryError as error:
        print(error)
allow(resource.RLIM_INFINITY)
print("again:", np.array_equal(backend.forward(small).logits, expected))
whole = backend.forward(large).logits.copy()
other = make_native(FULL, 160, 16, num_threads=1)
print("larger:", np.array_equal(whole, other.forward(large).logits))
"""


RESERVED = "backend._ready.reserve(600, 600)"


@pytest.mark.parametrize("before", ["", RESERVED])
def test_a_step_without_memory_fails_and_the_next_are_exact(before: str) -> None:
    """Memory is refused for the results, or after those for the step's own rows."""
    told = run_alone(SCRIPT.replace("{before}", before)).splitlines()
    assert told[0] == told[1]
    assert told[0].startswith("the system gives the native engine no more memory: free some")
    assert "max_num_batched_tokens" in told[0]
    assert told[2:] == ["again: True", "larger: True"]


def test_a_result_is_valid_until_the_next_step() -> None:
    """The next step overwrites the arrays of a result, and a copy keeps its numbers."""
    backend = make_native(FULL, 160, 16, num_threads=1)
    first, second = make_batch((1, 0, 8)), make_batch((2, 0, 8))
    result = backend.forward(first)
    address, logits = result.logits.ctypes.data, result.logits.copy()
    assert backend.forward(second).logits.ctypes.data == address
    assert not np.array_equal(result.logits, logits)
    assert np.array_equal(backend.forward(first).logits, logits)
    assert len(backend.forward(make_batch((3, 0, 20))).logits) == 20
    assert np.array_equal(backend.forward(first).logits, logits)


def test_a_result_outlives_a_larger_step() -> None:
    """A larger step takes new memory, and does not free what a caller still reads."""
    backend = make_native(FULL, 160, 16, num_threads=1)
    result = backend.forward(make_batch((1, 0, 8)))
    logits = result.logits.copy()
    backend.forward(make_batch((2, 0, 600)))
    assert np.array_equal(result.logits, logits)


SIZE = StepSize(
    rows=600,
    wanted_rows=8,
    sequences=8,
    positions=600,
    hidden=16,
    ffn=24,
    heads=2,
    kv_heads=1,
    head_dim=8,
    vocabulary=VOCABULARY,
)


def test_the_largest_steps_memory_is_reserved_without_computing_it() -> None:
    """A step within the bounds needs no more than that."""
    backend = make_native(FULL, 160, 16, num_threads=2)
    num_bytes = backend.reserve(SIZE, 0)
    assert num_bytes > 600 * 16 * 4 * 3
    assert backend.reserve(SIZE, 0) == num_bytes  # all of it is there
    backend.forward(make_batch((1, 0, 600))._replace(logits_rows=np.arange(8, dtype=np.int32)))
    assert backend.reserve(SIZE, 0) == num_bytes
    larger = replace(SIZE, rows=3000, wanted_rows=3000)
    assert backend.reserve(larger, 0) > num_bytes


@pytest.mark.skipif(not own_bytes(), reason="only Linux counts a process's own pages")
@pytest.mark.parametrize("preallocates_kv", [False, True])
@pytest.mark.parametrize("kv_dtype", ["float32", "int8"])
def test_a_cache_takes_all_its_memory_at_once_where_that_is_asked_for(
    kv_dtype: str, preallocates_kv: bool
) -> None:
    backend = make_native(FULL, 160, 16, kv_dtype=kv_dtype, preallocates_kv=preallocates_kv)
    expected = backend.forward(make_batch((1, 0, 100))).logits.copy()
    gc.collect()  # so that no other test's memory is freed meanwhile
    num_blocks, before = 80_000, own_bytes()
    backend.make_cache(num_blocks)
    taken = own_bytes() - before
    cell_bytes = 8 * 4 if kv_dtype == "float32" else 8 + 4  # with its scale
    cache_bytes = num_blocks * len(FULL) * 2 * 16 * cell_bytes
    assert cache_bytes > 30 << 20
    if preallocates_kv:
        assert taken > 0.9 * cache_bytes  # a sanitizer takes more
    else:
        assert taken < 0.1 * cache_bytes
    assert np.array_equal(backend.forward(make_batch((1, 0, 100))).logits, expected)
