"""Eight-bit floats are those of another library, and scales the least that keep all in range."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest
import torch

from octavo.backends.torch import eight_bits, ops

LARGE = [1.0, 1.75, 1.7500001, 448.0, 448.1, 449.0, 0.1, 3e38, 2.0**-100, 1e-45]


def rows_of(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    size = torch.exp2(torch.randint(-20, 15, (40, 1), generator=generator).float())
    return (torch.randn(40, 96, generator=generator) * size).to(dtype)


@pytest.mark.parametrize("largest", LARGE)
def test_a_scale_is_the_least_power_of_two_that_keeps_a_vector_in_range(largest: float) -> None:
    x = torch.tensor([[largest / 3, -largest, 0.0]])
    (scale,) = eight_bits.scales_of(eight_bits.exponents_of(x)).tolist()
    assert math.frexp(scale)[0] == 0.5
    reached = float(x.abs().max()) / scale
    assert reached <= eight_bits.MOST
    assert reached > eight_bits.MOST / 2 or scale == 2.0**-126


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_codes_are_the_nearest_of_another_library(dtype: torch.dtype) -> None:
    x = rows_of(dtype)
    codes, scales = eight_bits.rounded(x, None)
    expected = (x.float() / scales).numpy().astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(codes.view(torch.uint8).numpy(), expected.view(np.uint8))
    values = eight_bits.as_rounded(x)
    assert values.dtype == dtype
    np.testing.assert_array_equal(values.float(), expected.astype(np.float32) * scales.numpy())
    worst = (values.float() - x.float()).abs().amax(1) / x.float().abs().amax(1)
    assert 2**-7 < worst.max() <= 2**-4


def test_a_given_scale_is_for_all_rows_and_larger_numbers_become_the_largest() -> None:
    x = torch.tensor([[0.25, -3.0, 1000.0], [0.0, 60.0, -1e30]])
    scale = 0.1
    codes, scales = eight_bits.rounded(x, scale)
    assert scales.flatten().tolist() == pytest.approx([scale, scale])
    expected = np.clip(x.numpy() / np.float32(scale), -448, 448).astype(ml_dtypes.float8_e4m3fn)
    np.testing.assert_array_equal(codes.view(torch.uint8).numpy(), expected.view(np.uint8))


def test_vectors_with_infinite_numbers_become_nan_and_zeros_stay() -> None:
    x = torch.tensor([[1.0, math.nan], [math.inf, 1.0], [0.0, 0.0], [1e-45, 0.0]])
    found = eight_bits.as_rounded(x)
    assert found[:2].isnan().all()
    assert found[2].tolist() == [0.0, 0.0]
    assert eight_bits.exponents_of(x).tolist()[:2] == [eight_bits.NO_SCALE] * 2


def test_the_largest_numbers_of_float16_stay_finite() -> None:
    x = torch.tensor([[65504.0, 1.0]], dtype=torch.float16)
    assert eight_bits.as_rounded(x).tolist()[0][0] == 65504.0


@pytest.mark.parametrize("kind", ["fp8", f"fp8 {(0.3).hex()}"])
def test_rounded_rows_are_a_form_whose_rows_are_independent(kind: str) -> None:
    x = rows_of()
    found = ops.formed(x, kind)
    assert torch.equal(found[3:4], ops.formed(x[3:4], kind))
    assert not torch.equal(found, x)
    assert torch.equal(ops.formed(found, kind), found)
    assert ops.formed(x, "float") is x


@pytest.mark.parametrize(("groups", "size"), [(1, 10), (1, 16), (2, 8), (3, 4), (4, 3)])
def test_values_have_the_scales_of_their_groups(groups: int, size: int) -> None:
    """A last group may be cut short, by much or little."""
    codes = torch.randn(5, 10, generator=torch.Generator().manual_seed(2)).to(eight_bits.CODES)
    scales = torch.arange(1, 5 * groups + 1).view(5, groups).float()
    found = eight_bits.of_groups(codes, scales, size, torch.float32)
    for row in range(5):
        for column in range(10):
            factor = float(scales[row, column // size])
            assert found[row, column] == float(codes[row, column].float()) * factor
