"""Floats become FP8 and NF4 at load: the largest value of a group becomes the largest code."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from octavo.backends.native import _native
from octavo.backends.native.packing import Matrix, Packer
from octavo.backends.stored_rows import Floats, StoredRows
from octavo.layers import Embedding, GateUpLinear, Linear
from octavo.options.cpu_types import CpuWeights
from octavo.quant.methods.bitsandbytes import TABLES
from tests.backends.native.test_packing import INPUTS, stored


def packed(weights: CpuWeights, rows: StoredRows) -> tuple[Matrix, Floats]:
    """Pack rows, and return the values of all of them."""
    matrix = Packer(_native.Team(2, False), weights).matrix([rows], Linear(rows.inputs, len(rows)))
    native = matrix.pieces[0].native
    return matrix, np.stack([native.row(index) for index in range(len(rows))])


def grouped(values: Floats, group: int) -> tuple[Floats, Floats]:
    """Return values in groups, and the largest magnitude of each."""
    groups = values.reshape(len(values), -1, group)
    return groups, np.abs(groups).max(-1, keepdims=True)


def as_fp8(values: Floats, group: int) -> Floats:
    groups, largest = grouped(values, group)
    scales = largest / np.float32(448)
    codes = (groups / np.where(scales > 0, scales, 1)).astype(ml_dtypes.float8_e4m3fn)
    made: Floats = codes.astype(np.float32) * scales
    return made.reshape(values.shape)


def as_nf4(values: Floats) -> Floats:
    groups, largest = grouped(values, 64)
    parts = groups / np.where(largest > 0, largest, 1)
    codes = np.abs(parts[..., None] - TABLES["nf4"]).argmin(-1)
    made: Floats = TABLES["nf4"][codes] * largest
    return made.reshape(values.shape)


def numbers(inputs: int) -> Floats:
    """Return rows of ordinary numbers, of zeros, and of magnitudes far apart."""
    generator = np.random.default_rng(0)
    values = generator.standard_normal((50, inputs)).astype(np.float32)
    values[3] = 0
    values[4] *= np.exp2(generator.integers(-30, 30, inputs)).astype(np.float32)
    values[5] *= np.float32(1e-30)
    return values


@pytest.mark.parametrize(("inputs", "group"), [(512, 128), (352, 32)])
def test_fp8_is_the_nearest_of_its_numbers(inputs: int, group: int) -> None:
    matrix, values = packed("fp8", StoredRows.of(numbers(inputs)))
    assert matrix.formats == f"F8By{group}"
    np.testing.assert_allclose(values, as_fp8(numbers(inputs), group), rtol=1e-6, atol=0)


def test_nf4_is_the_nearest_of_its_numbers() -> None:
    matrix, values = packed("nf4", StoredRows.of(numbers(INPUTS)))
    assert matrix.formats == "NF4By64"
    _, largest = grouped(numbers(INPUTS), 64)
    errors, _ = grouped(values - as_nf4(numbers(INPUTS)), 64)
    assert (np.abs(errors) <= 0.0007 * largest).all()  # its numbers are rounded to bf16


@pytest.mark.parametrize("name", ["BF16", "F16"])
@pytest.mark.parametrize("weights", ["fp8", "nf4"])
def test_floats_of_16_bits_become_the_same_as_their_values(name: str, weights: CpuWeights) -> None:
    rows = stored(name, 50).reordered(np.random.default_rng(1).permutation(50))
    _, values = packed(weights, rows)
    np.testing.assert_array_equal(values, packed(weights, StoredRows.of(rows.floats()))[1])


@pytest.mark.parametrize("weights", ["fp8", "nf4"])
@pytest.mark.parametrize("damage", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_makes_its_group_nan(weights: CpuWeights, damage: float) -> None:
    floats = numbers(INPUTS)
    floats[7, 130] = damage
    _, values = packed(weights, StoredRows.of(floats))
    assert np.isnan(values[7, 128:192]).all()
    assert np.isfinite(np.delete(values, 7, axis=0)).all()
    assert np.isfinite(values[7, :128]).all()


@pytest.mark.parametrize("weights", ["fp8", "nf4"])
def test_gates_and_ups_are_interleaved_as_other_weights_are(weights: CpuWeights) -> None:
    gate, up = stored("BF16", 24), stored("BF16", 24, 1)
    packer = Packer(_native.Team(1, False), weights)
    matrix = packer.matrix([gate, up], GateUpLinear(INPUTS, 24))
    assert matrix.gated
    native = matrix.pieces[0].native
    for row, part in ((0, gate.cut(0, 1)), (16, up.cut(0, 1))):
        np.testing.assert_array_equal(native.row(row), packed(weights, part)[1][0])


@pytest.mark.parametrize("weights", ["fp8", "nf4"])
def test_embeddings_and_rows_that_do_not_divide_keep_their_type(weights: CpuWeights) -> None:
    packer = Packer(_native.Team(1, False), weights)
    rows = stored("BF16", 40)
    assert packer.matrix([rows], Embedding(40, INPUTS)).formats == "BF16"
    odd = StoredRows.of(np.ones((40, 40), np.float32))
    assert packer.matrix([odd], Linear(40, 40)).formats == "F32"
