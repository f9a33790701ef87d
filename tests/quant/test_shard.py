"""Rows of any format are cut, stacked and reordered without decoding: a rank's part is a slice."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from octavo.backends.stored_rows import StoredRows
from octavo.distributed.context import ParallelContext
from octavo.layers import GateUpLinear, Linear, Part, QKVLinear
from octavo.loader.gguf import types
from octavo.loader.tensor_type import BF16, F32, TensorType
from octavo.quant.integers import integer_layout, kind_of
from octavo.quant.methods.fp8 import fp8_layout
from octavo.quant.plain import layout_of
from octavo.quant.shard import Run, ShardError, column_run, cut_inputs, part_run, row_runs

KINDS: tuple[TensorType, ...] = (F32, BF16, types.Q8_0, types.Q4_K, types.MXFP4)
INPUTS = 1024
LAYOUTS = {
    **{kind.name: layout_of(kind) for kind in KINDS},
    "I4ZeroBy128": integer_layout(kind_of(4, INPUTS, 128, is_symmetric=False)),
    "I8ZeroBy32": integer_layout(kind_of(8, INPUTS, 32, is_symmetric=False)),
    "F8By128": fp8_layout(128, "F8By128"),
}


def made_up(name: str, count: int = 24, *, act_order: bool = False) -> StoredRows:
    """Make rows of random bytes that decode to finite numbers."""
    layout = LAYOUTS[name]
    generator = np.random.default_rng(0)
    row_bytes = INPUTS // layout.group * layout.group_bytes
    # Bytes below 56 are no infinity or NaN at any place of a float.
    rows = generator.integers(0, 56, (count, row_bytes), np.uint8)
    columns = generator.permutation(INPUTS) if act_order else None
    return StoredRows(layout, INPUTS, rows, columns=columns)


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("act_order", [False, True], ids=["in order", "act-order"])
def test_inputs_are_cut_where_the_values_are(name: str, act_order: bool) -> None:
    """A cut is a view of the same bytes, and its values are columns of the whole."""
    rows = made_up(name, act_order=act_order).reordered(np.random.default_rng(1).permutation(24))
    whole, half = rows.floats(), INPUTS // 2
    assert np.isfinite(whole).all()
    parts = [rows.cut_inputs(0, half), rows.cut_inputs(half, INPUTS)]
    for part, start in zip(parts, (0, half), strict=True):
        assert np.shares_memory(part.rows, rows.array)
        inputs = rows.inputs_in(start, start + half)
        assert (inputs is not None) == act_order
        expected = whole[:, start : start + half] if inputs is None else whole[:, inputs]
        np.testing.assert_array_equal(part.floats(), expected)
    assert sum(part.num_bytes for part in parts) == rows.num_bytes


@pytest.mark.parametrize("name", LAYOUTS)
def test_addresses_are_those_of_the_rows(name: str) -> None:
    """A cut of the inputs leaves gaps between rows."""
    rows = made_up(name).cut_inputs(512, INPUTS).reordered(np.array([3, 1])).cut(1, 2)
    (address,) = rows.addresses()
    assert address == rows.array[1].ctypes.data
    assert rows.file_spans == []
    ((begin, num_bytes),) = replace(rows, is_file=True).file_spans
    assert begin == rows.array.ctypes.data
    assert begin + num_bytes == rows.array[-1].ctypes.data + rows.array.shape[1]


def test_a_last_group_may_be_shorter() -> None:
    layout = fp8_layout(128, "FP8")
    rows = StoredRows(layout, 200, np.full((3, 2 * layout.group_bytes), 50, np.uint8))
    assert rows.floats().shape == (3, 200)
    assert rows.cut_inputs(128, 200).floats().shape == (3, 72)
    with pytest.raises(ValueError, match="input 100 is inside a group of 128"):
        rows.cut_inputs(0, 100)


LINEARS: dict[str, tuple[Linear, list[range]]] = {
    # the rows of rank 1 of 2, by hand: heads of 16 rows
    "qkv": (QKVLinear(INPUTS, 4, 2, 16), [range(32, 64), range(16, 32), range(16, 32)]),
    "gate_up": (GateUpLinear(INPUTS, 48), [range(24, 48), range(24, 48)]),
    "split by outputs": (Linear(INPUTS, 24, shard="out"), [range(12, 24)]),
    "split by inputs": (Linear(INPUTS, 24, shard="in"), [range(24)]),
    "whole": (Linear(INPUTS, 24), [range(24)]),
}


@pytest.mark.parametrize("name", LINEARS)
def test_a_rank_owns_whole_heads_or_a_run_of_inputs(name: str) -> None:
    linear, expected = LINEARS[name]
    context = ParallelContext(1, 2)
    runs = row_runs(linear, context)
    assert [range(run.start, run.stop) for run in runs] == expected
    columns = Run(512, 1024) if linear.shard == "in" else Run(0, 1024)
    assert column_run(linear, context) == columns


@pytest.mark.parametrize("name", ["Q4_K", "I4ZeroBy128", "F8By128"])
def test_a_group_that_would_be_cut_is_refused_with_its_numbers(name: str) -> None:
    rows, group = made_up(name), LAYOUTS[name].group
    message = (
        rf"down: a rank's inputs 64\.\.128 of 1024 cut a group of {group} \({name}\); "
        "use fewer ranks"
    )
    with pytest.raises(ShardError, match=message):
        cut_inputs(rows, Run(64, 128), "down")


def test_what_does_not_divide_among_the_ranks_is_refused_with_its_numbers() -> None:
    with pytest.raises(ShardError, match=r"q has 6 units .* among 4 ranks"):
        part_run(Part("q", 96, unit=16), ParallelContext(0, 4))
    with pytest.raises(ShardError, match=r"k has 3 units .* 8 ranks cannot share them evenly"):
        part_run(Part("k", 48, unit=16, replicable=True), ParallelContext(0, 8))
    with pytest.raises(ShardError, match=r"k has 3 units .* among 2 ranks"):
        part_run(Part("k", 48, unit=16, replicable=True), ParallelContext(0, 2))


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("act_order", [False, True], ids=["in order", "act-order"])
def test_turned_rows_have_the_same_values(name: str, act_order: bool) -> None:
    """Plain numbers keep their type; those that share scales along a row cannot."""
    rows = made_up(name, act_order=act_order).reordered(np.random.default_rng(1).permutation(24))
    turned = rows.transposed()
    np.testing.assert_array_equal(turned.floats(), rows.floats().T)
    assert turned.type == (name if name in ("F32", "BF16") and not act_order else "F32")
