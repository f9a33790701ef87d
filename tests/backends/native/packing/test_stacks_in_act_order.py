"""Stacks and tables in act-order: their matrices have the values that the file's rows have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from octavo.backends.made_rows import GroupTensors
from octavo.backends.native import _native
from octavo.backends.native.packing import Matrix, Packer
from octavo.backends.stored_rows import StoredRows
from octavo.layers import Embedding, GateUpLinear, Linear
from octavo.options.cpu_types import CpuWeights
from octavo.quant.integers import integer_layout, kind_of, made_rows

INPUTS, OUTPUTS = 128, 24


def integers(bits: int, group: int, order: int | None, seed: int = 0) -> StoredRows:
    """Make symmetric integers, whose inputs have the order of a number; None: no order."""
    generator = np.random.default_rng(seed)
    kind = kind_of(bits, INPUTS, group, is_symmetric=True)
    codes = generator.integers(0, 256, (OUTPUTS, INPUTS * bits // 8), np.uint8)
    scales = generator.uniform(0.5, 1.5, (OUTPUTS, INPUTS // group)).astype(np.float16)
    columns = None if order is None else np.random.default_rng(order).permutation(INPUTS)
    tensors = GroupTensors(
        inputs=INPUTS,
        codes=codes,
        bits=bits,
        scales=scales,
        scale_group=group,
        group=kind.group,
        middle=kind.middle,
        columns=columns,
    )
    return made_rows(integer_layout(kind), tensors)


def panels(matrices: Sequence[Matrix], packer: Packer) -> list[tuple[str, bytes]]:
    """Return the format and the bytes of each piece, whose inputs have the order of the rows'."""
    packer.finish()
    pieces = [piece for matrix in matrices for piece in matrix.pieces]
    assert all(piece.order is None for piece in pieces)
    return [(piece.native.format.name, piece.native.panels.tobytes()) for piece in pieces]


def stack(
    matrices: Sequence[Sequence[StoredRows]], weights: CpuWeights = "auto"
) -> list[tuple[str, bytes]]:
    """Pack a stack; matrices of two parts are gates above ups."""
    packer = Packer(_native.Team(1, False), weights)
    is_gated = len(matrices[0]) > 1
    module = GateUpLinear(INPUTS, OUTPUTS) if is_gated else Linear(INPUTS, OUTPUTS)
    return panels(packer.experts(matrices, module).matrices, packer)


def check_stack(matrices: Sequence[Sequence[StoredRows]]) -> None:
    """Compare a stack with that of its values as floats, which become int8 alike."""
    values = [[StoredRows.of(part.floats()) for part in parts] for parts in matrices]
    in_memory = [[part.in_memory() for part in parts] for parts in matrices]
    assert stack(matrices) == stack(in_memory) == stack(values, "int8")


@pytest.mark.parametrize(("bits", "group"), [(8, 32), (8, 64), (4, 32), (4, 128)])
def test_matrices_of_a_stack_are_packed_by_their_values(bits: int, group: int) -> None:
    """Symmetric bytes in groups of 32 are int8 already, and their inputs still change places."""
    check_stack([[integers(bits, group, order, order)] for order in (1, 2)])


@pytest.mark.parametrize("bits", [4, 8])
def test_matrices_of_a_stack_have_orders_of_their_own(bits: int) -> None:
    """Gates and ups may differ in theirs, and some matrices may have none."""
    check_stack([[integers(bits, 64, 1), integers(bits, 64, 2)] for _ in range(2)])
    check_stack([[integers(bits, 64, None)], [integers(bits, 64, 1)]])
    check_stack([[integers(bits, 64, None), integers(bits, 64, None)], [integers(bits, 64, 1)] * 2])
    floats = StoredRows.of(integers(bits, 64, 1).floats())
    with pytest.raises(ValueError, match="several types"):
        stack([[floats], [integers(bits, 64, 1)]])


def test_a_table_is_packed_by_its_values() -> None:
    rows = integers(8, 32, 1)

    def table(part: StoredRows, weights: CpuWeights) -> list[tuple[str, bytes]]:
        packer = Packer(_native.Team(1, False), weights)
        return panels([packer.matrix([part], Embedding(OUTPUTS, INPUTS))], packer)

    assert table(rows, "auto") == table(StoredRows.of(rows.floats()), "int8")
