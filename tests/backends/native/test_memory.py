"""A step without enough memory fails with a clear error, and later steps are not affected."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

from tests.backends.native.test_team import run_alone
from tests.backends.native.tiny import make_batch, make_native
from tests.runner.tiny import FULL

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
for array in ("_logits", "_hidden"):  # numpy's own allocations must succeed
    width = getattr(backend, array).shape[1]
    setattr(backend, array, np.empty((600, width), np.float32))
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


def test_a_step_without_memory_fails_and_the_next_are_exact() -> None:
    told = run_alone(SCRIPT).splitlines()
    assert told[0] == told[1]
    assert told[0].startswith("the system gives the native engine no more memory: free some")
    assert "max_num_batched_tokens" in told[0]
    assert told[2:] == ["again: True", "larger: True"]


@pytest.mark.parametrize("failing", [1, 2])
def test_results_without_memory_fail_one_step(failing: int) -> None:
    """The allocation of the logits fails, or that of the hidden states after it."""
    backend = make_native(FULL, 160, 16, num_threads=1)
    batch = make_batch((1, 0, 8))
    calls = 0

    def empty(*arguments: object) -> object:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise MemoryError
        return np.zeros(*arguments)  # type: ignore[call-overload]

    with mock.patch.object(np, "empty", empty), pytest.raises(MemoryError):
        backend.forward(batch)
    expected = make_native(FULL, 160, 16, num_threads=1).forward(batch)
    for _ in range(2):
        assert np.array_equal(backend.forward(batch).logits, expected.logits)


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
