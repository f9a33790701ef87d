"""A small model on the native engine: equal to the reference, and to itself in any batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from octavo.backends.native import _native
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.step import batch_of_copies
from tests.backends.native.tiny import make_batch, make_native
from tests.runner.tiny import FULL, make_backend

WINDOWED = (None, 20, None, 20)
LENGTH = 70  # several blocks and tiles of queries, and a multiple of neither


def logits_of(backend: Any, *steps: Any) -> np.ndarray:
    """Return the logits of all rows of some steps, one step after the other."""
    return np.concatenate([backend.forward(step).logits.copy() for step in steps])


@pytest.mark.parametrize("tier", _native.tiers())
@pytest.mark.parametrize("windows", [FULL, WINDOWED])
def test_it_says_what_the_reference_says(tier: str, windows: Any) -> None:
    """Logits and hidden states within fp32 rounding, in every tier."""
    groups = len(set(windows))
    native = make_native(windows, 64, 16, instruction_set=tier)
    ours = native.forward(make_batch((0, 0, LENGTH), groups=groups))
    theirs = make_backend(windows, 64, 16).forward(make_batch((0, 0, LENGTH), groups=groups))
    for mine, expected in zip(ours[:2], theirs[:2], strict=True):
        np.testing.assert_allclose(mine, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


WAYS: dict[str, list[list[tuple[int, int, int]]]] = {
    "token by token": [[(0, at, 1)] for at in range(LENGTH)],
    "in uneven chunks": [[(0, 0, 33)], [(0, 33, 1)], [(0, 34, 20)], [(0, 54, 16)]],
    "beside others": [
        [(1, 0, 5), (0, 0, 40), (2, 0, 1)],
        [(2, 1, 1), (1, 5, 1), (0, 40, 1)],
        [(0, 41, 29), (2, 2, 17)],
    ],
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    "options",
    [
        *({}, {"weights": "bf16", "kv_dtype": "bfloat16"}, {"kv_dtype": "int8"}),
        *({"kv_dtype": "fp8_e4m3"}, {"kv_dtype": "fp8_e5m2"}, {"kv_dtype": "int4"}),
    ],
)
def test_rows_depend_on_nothing_but_their_sequence(
    way: str, threads: int, options: dict[str, Any]
) -> None:
    """Chunks, neighbours and the number of threads change no bit."""
    whole = make_native(WINDOWED, 160, 16, num_threads=1, **options)
    expected = logits_of(whole, make_batch((0, 0, LENGTH), groups=2))
    backend = make_native(WINDOWED, 160, 16, num_threads=threads, **options)
    rows = []
    for step in WAYS[way]:
        logits = backend.forward(make_batch(*step, groups=2)).logits
        begin = 0
        for name, _, count in step:
            if name == 0:
                rows.append(logits[begin : begin + count].copy())
            begin += count
    assert np.array_equal(np.concatenate(rows), expected)


def test_copied_blocks_are_read_like_the_originals() -> None:
    """A sequence continues over copies of its blocks."""
    backend = make_native(FULL, 160, 16)
    backend.forward(make_batch((0, 0, 40)))
    expected = backend.forward(make_batch((0, 40, 1))).logits.copy()
    backend.forward(batch_of_copies(((1, 41, 0), (2, 42, 0), (3, 43, 0))))
    step = make_batch((0, 40, 1))
    moved = type(step)(
        step.token_ids,
        step.positions,
        step.row_starts,
        tuple(table + 40 for table in step.tables),
        step.logits_rows,
    )
    assert np.array_equal(backend.forward(moved).logits, expected)


def test_what_does_not_fit_is_refused() -> None:
    """The error says what is wrong, and nothing is read out of bounds."""
    backend = make_native(FULL, 8, 16)
    with pytest.raises(ValueError, match="block 121 of a cache of 8"):
        backend.forward(make_batch((3, 0, 5)))
    with pytest.raises(ValueError, match="block 1 to 8: the cache has 8"):
        backend.forward(batch_of_copies(((1, 8, 0),)))
    with pytest.raises(ValueError, match="multiples of 16"):
        make_native(FULL, 8, 8)
    with pytest.raises(ValueError, match="cpu_isa='mmx'"):
        NativeBackend(NativeOptions(instruction_set="mmx"))


def test_arrays_of_a_step_that_do_not_fit_are_refused() -> None:
    """The check comes before any read or write beyond the ends of arrays."""
    backend = make_native(FULL, 64, 16)
    batch = make_batch((0, 0, 3), (1, 0, 2))
    wrong: dict[str, dict[str, Any]] = {
        "up to the number of rows": {"row_starts": np.array([0, 1 << 30, 5], np.int32)},
        "sizes of a step's arrays": {"positions": batch.positions[:4]},
        "tables of blocks must be of one shape": {"tables": (batch.tables[0][:1],)},
        "a table of blocks is missing": {"tables": ()},
        "not one of the step's rows": {"logits_rows": np.array([5], np.int32)},
    }
    for message, fields in wrong.items():
        with pytest.raises(ValueError, match=message):
            backend.forward(batch._replace(**fields))


def test_a_step_may_be_larger_than_all_before() -> None:
    """Scratch memory grows, and earlier results can be computed again."""
    backend = make_native(FULL, 160, 16)
    before = backend.forward(make_batch((0, 0, 3))).logits.copy()
    backend.forward(make_batch(*((name, 0, 70) for name in range(1, 4))))
    assert np.array_equal(backend.forward(make_batch((0, 0, 3))).logits, before)
