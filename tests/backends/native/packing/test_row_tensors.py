"""Rows that the engine makes of a file's tensors give the panels of rows that numpy makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from msgspec.structs import replace

from octavo.backends.made_rows import MadeRows
from octavo.backends.native import _native
from octavo.backends.native.packed_cache.sources import Sources
from octavo.backends.native.packing import Packer
from octavo.backends.native.panels import MatrixRows
from octavo.backends.native.row_tensors import row_tensors
from octavo.backends.stored_rows import StoredRows
from octavo.layers import GateUpLinear, Linear
from tests.quant import made_compressed, made_up, one_module
from tests.quant.made_up import MadeFormat

INPUTS, OUTPUTS = one_module.INPUTS, one_module.OUTPUTS


def compressed(*args: Any, **more: Any) -> MadeFormat:
    return MadeFormat(*made_compressed.integers(*args, **more))


# Each order of codes, number of bits, size of groups, type of scales, with zero points or without,
# and inputs in the order of the groups or not.
FORMATS: dict[str, MadeFormat] = {
    **{
        f"GPTQ, {bits} bits by {group}{', symmetric' if sym else ''}": made_up.gptq(
            bits, group, sym=sym
        )
        for bits in (2, 3, 4, 8)
        for group in (32, 64, 128, -1)
        for sym in (False, True)
    },
    **{
        f"GPTQ, act-order, {bits} bits": made_up.gptq(bits, 32, act_order=True)
        for bits in (2, 3, 4, 8)
    },
    "GPTQ, groups of 96": made_up.gptq(4, 96),
    **{f"AWQ by {group}": made_up.awq(group) for group in (32, 64, 128, -1)},
    "AWQ, symmetric": made_up.awq(64, zero_point=False),
    "AWQ, gemv": made_up.awq(64, layout="gemv"),
    **{
        f"packed, {bits} bits{'' if sym else ', zero points'}": compressed(
            bits, "group", 64, symmetric=sym, scale_type=ml_dtypes.bfloat16
        )
        for bits in range(2, 9)
        for sym in (False, True)
    },
    "packed, act-order": compressed(4, "group", 32, symmetric=False, act_order=True),
    "packed, a scale for a row": compressed(4, "channel", scale_type=np.float32),
    "bytes": compressed(8, "channel", is_packed=False),
    "bytes, 4 bits": compressed(4, "group", 32, is_packed=False, scale_type=np.float64),
    "bytes, a scale for a matrix": compressed(8, "tensor", is_packed=False, symmetric=False),
    "torchao": made_up.torchao(32),
    "torchao, zero points": made_up.torchao(32, zeros=np.int8),
    "torchao, 4 bits": made_up.torchao_int4(64),
    "torchao, 4 bits in tiles": made_up.torchao_int4(128, is_tiled=True),
    **{f"HQQ, {bits} bits": made_up.hqq(bits, 64) for bits in (1, 2, 3, 4, 8)},
    "HQQ, 3 bits, a last part that is filled up": made_up.hqq(3, 256),
    "HQQ, a scale for a row": made_up.hqq(4, None),
    "HQQ, groups of 8": made_up.hqq(4, 8),
    "bitsandbytes": made_up.bitsandbytes_int8(),
    "FP8, blocks": made_up.fp8_blocks(16, 64),
    "FP8, a scale for a row": made_up.fp8({"quant_method": "fp8"}, lambda rows, columns: (rows, 1)),
    "FP8, a scale for a matrix": made_up.fp8({"quant_method": "fp8"}, lambda rows, columns: ()),
}

SHUFFLED = np.random.default_rng(1).permutation(OUTPUTS)
HALF = INPUTS // 2
# What is done to a matrix between its file and the packer.
CHANGES: dict[str, Callable[[StoredRows], list[StoredRows]]] = {
    "whole": lambda rows: [rows],
    "stacked": lambda rows: [rows.cut(0, 10), rows.cut(12, 33), rows],
    "reordered": lambda rows: [rows.reordered(SHUFFLED).cut(3, 39)],
    "first inputs": lambda rows: [rows.cut_inputs(0, HALF)],
    "last inputs, some rows": lambda rows: [rows.cut_inputs(HALF, INPUTS).cut(5, 30)],
}


def panels(parts: Sequence[StoredRows], *, is_gated: bool = False) -> tuple[str, bytes]:
    """Pack parts; return the format and the bytes of the panels."""
    packer = Packer(_native.Team(2, False), "auto")
    inputs, outputs = parts[0].inputs, sum(map(len, parts))
    module = GateUpLinear(inputs, outputs // 2) if is_gated else Linear(inputs, outputs)
    matrix = packer.matrix(parts, module)
    packer.finish()
    (piece,) = matrix.pieces
    return matrix.formats, piece.native.panels.tobytes()


@pytest.mark.parametrize("name", FORMATS)
def test_panels_are_those_of_rows_in_memory(name: str, tmp_path: Path) -> None:
    rows, _ = one_module.read(tmp_path, FORMATS[name])
    assert isinstance(rows.rows, MadeRows)
    for what, change in CHANGES.items():
        if "inputs" in what and HALF % rows.layout.group:
            continue
        parts = change(rows)
        in_memory = [part.in_memory() for part in parts]
        assert all(isinstance(part.rows, np.ndarray) for part in in_memory)
        assert panels(parts) == panels(in_memory)


@pytest.mark.parametrize("name", ["GPTQ, 4 bits by 128", "AWQ by 64", "GPTQ, act-order, 4 bits"])
def test_gates_and_ups_are_made_of_two_matrices(name: str, tmp_path: Path) -> None:
    rows, _ = one_module.read(tmp_path, FORMATS[name])
    parts = [rows, rows.reordered(SHUFFLED)]
    in_memory = [part.in_memory() for part in parts]
    assert panels(parts, is_gated=True) == panels(in_memory, is_gated=True)


@pytest.mark.parametrize("name", ["GPTQ, 4 bits by 128", "AWQ by 64", "packed, 4 bits"])
def test_matrices_of_several_pieces_of_work_are_whole(name: str, tmp_path: Path) -> None:
    """Threads take a few panels each, and a matrix of more rows has several turns."""
    rows, _ = one_module.read(tmp_path, FORMATS[name])
    many = rows.reordered(np.arange(4000) % OUTPUTS)
    assert panels([many]) == panels([many.in_memory()])


def test_scales_may_be_for_several_rows(tmp_path: Path) -> None:
    rows, _ = one_module.read(tmp_path, FORMATS["torchao"])
    assert isinstance(rows.rows, MadeRows)
    tensors = replace(rows.rows.tensors, scales=rows.rows.tensors.scales[::8], scale_outputs=8)
    parts = [replace(rows, rows=MadeRows.of(tensors)).cut(3, 30)]
    in_memory = [part.in_memory() for part in parts]
    assert panels(parts) == panels(in_memory)


def test_only_rows_of_a_mapped_file_wait(tmp_path: Path) -> None:
    """The pages of tensors are dropped once they are read, and memory that was computed is not."""
    rows, _ = one_module.read(tmp_path, FORMATS["GPTQ, 4 bits by 128"])
    assert isinstance(rows.rows, MadeRows)
    tensors = rows.rows.tensors
    assert rows.is_file
    starts = [begin for begin, _ in rows.file_spans]
    assert starts == [tensors.codes.ctypes.data, tensors.scales.ctypes.data]
    assert [size for _, size in rows.file_spans] == [tensors.codes.nbytes, tensors.scales.nbytes]
    computed, _ = one_module.read(tmp_path, FORMATS["bytes, 4 bits"])
    assert not computed.is_file
    assert computed.file_spans == []


def test_rows_of_other_tensors_have_other_recipes(tmp_path: Path) -> None:
    """A recipe depends on which tensors, rows and groups a matrix is made of, and how they lie."""

    def recipe(part: StoredRows) -> str:
        rows = MatrixRows([part], _native.Format.U4By64, part.inputs)
        return Sources([]).recipe(rows)

    rows, _ = one_module.read(tmp_path, FORMATS["AWQ by 64"])
    again, _ = one_module.read(tmp_path, FORMATS["AWQ by 64"])
    other, _ = one_module.read(tmp_path, FORMATS["AWQ, gemv"])
    assert recipe(rows) == recipe(again)
    each = {
        *(recipe(rows), recipe(other), recipe(rows.cut(0, 8)), recipe(rows.cut(8, 16))),
        *(recipe(rows.cut_inputs(0, HALF)), recipe(rows.cut_inputs(HALF, INPUTS))),
        recipe(rows.reordered(SHUFFLED)),
    }
    assert len(each) == 7


WRONG: dict[str, dict[str, Any]] = {
    "too few words": {"codes": np.zeros((4, 7), np.int32)},
    "words of 16 bits": {"codes": np.zeros((4, 99), np.int16)},
    "too few scales": {"scales": np.zeros((4, 1), np.float32)},
    "scales for fewer rows": {"scales": np.zeros((3, 2), np.float32)},
    "scales of another type": {"scales": np.zeros((4, 2), np.float16)},
    "too few zero points": {"zeros": np.zeros((4, 1), np.uint8)},
    "zero points for fewer rows": {"zeros": np.zeros((3, 2), np.uint8)},
    "too few columns": {"columns": np.arange(63)},
    "a column outside": {"columns": np.append(np.arange(63), 64)},
    "a place outside": {"places": np.append(np.arange(63), -1)},
    "a table for codes of three bits": {"table": np.zeros(8, np.float32)},
    "no groups": {"end_group": 0},
    "groups outside": {"end_group": 3},
    "groups without inputs": {"group": 0},
    "no inputs": {"inputs": 0},
    "one bit": {"bits": 1},
    "nine bits": {"bits": 9},
    "inverted codes of three bits": {"flipped": 8, "bits": 3},
    "zero points of another type": {
        "zeros": np.zeros((4, 2), np.float16),
        "zero_type": _native.Stored.F32,
    },
    "floats as bytes of zero points": {"zeros": np.zeros((4, 2), np.float32)},
    "more parts than a word has": {"parts": 9, "codes": np.zeros((1, 32), np.int32)},
    "too few words of a group": {"parts": 2, "codes": np.zeros((4, 16), np.uint8)},
    "groups of parts that are no whole row": {
        "parts": 2,
        "codes": np.zeros((4, 48), np.uint8),
        "scale_group": 48,
    },
    "eight outputs in words of eight bits": {
        "codes": np.zeros((4, 64), np.uint8),
        "is_of_eight": True,
    },
}


def made(**change: Any) -> _native.RowTensors:
    """Describe four rows of two groups of 32 inputs."""
    right: dict[str, Any] = {
        "inputs": 64,
        "codes": np.zeros((4, 8), np.int32),
        "is_of_eight": False,
        "parts": 0,
        "bits": 4,
        "flipped": 0,
        "scales": np.zeros((4, 2), np.float32),
        "scale_type": _native.Stored.F32,
        "scale_outputs": 1,
        "scale_group": 32,
        "zeros": None,
        "zero_type": None,
        "middle": 8,
        "has_zeros": False,
        "zeros_are_values": False,
        "columns": None,
        "group": 32,
        "first_group": 0,
        "end_group": 2,
        "has_values": False,
        "table": None,
        "places": None,
    }
    return _native.RowTensors(**{**right, **change})


@pytest.mark.parametrize("what", WRONG)
def test_tensors_that_are_too_small_are_refused(what: str) -> None:
    made()
    with pytest.raises(ValueError, match="tensors of rows"):
        made(**WRONG[what])


@pytest.mark.parametrize("number", [1, 1 << 32 | 4, 2 << 32])
def test_rows_that_do_not_exist_are_refused(number: int) -> None:
    stored, format_ = _native.Stored.I4By32, _native.Format.U4
    store, tensors = _native.Store(_native.Team(1, False)), made()
    rows = np.array([0, 1 << 32 | 3, number], np.uint64)
    store.pack(stored, format_, 64, rows[:2], tensors, [], [tensors])
    with pytest.raises(ValueError, match="no such"):
        store.pack(stored, format_, 64, rows, tensors, [], [tensors])
    with pytest.raises(ValueError, match="another type or length"):
        store.pack(_native.Stored.I8By32, _native.Format.U8, 64, rows[:2], tensors, [], [tensors])
    store.finish()


def test_rows_in_memory_have_no_tensors(tmp_path: Path) -> None:
    rows, _ = one_module.read(tmp_path, FORMATS["AWQ by 64"])
    assert len(row_tensors([rows, rows], has_values=False)) == 2
    assert row_tensors([rows, rows.in_memory()], has_values=False) == []
