"""The epilogue of sums: bias, scale, cap, activations, gates, residual and experts' rows.

A matrix of ones with one input hands the epilogue exactly the numbers that a test chooses.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.backends.native import _native_test
from tests.backends.native.kernels.gemm_cases import (
    TIERS,
    Doubles,
    Floats,
    Stored,
    bits,
    multiply,
    pack,
)

every_tier = pytest.mark.parametrize("tier", TIERS)


def logistic(x: Doubles) -> Doubles:
    small = np.exp(-np.abs(x))
    return np.where(x < 0, small, 1) / (1 + small)


def normal_distribution(x: Doubles) -> Doubles:
    return np.array([math.erfc(-value * math.sqrt(0.5)) / 2 for value in x.flat]).reshape(x.shape)


REFERENCE: dict[str, Callable[[Doubles], Doubles]] = {
    "none": lambda x: x,
    "silu": lambda x: x * logistic(x),
    "gelu": lambda x: x * normal_distribution(x),
    "gelu_tanh": lambda x: x * 0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "sigmoid": logistic,
}


def numbers(seed: int, *shape: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def fp32_matrix(weights: Floats) -> _native_test.PackedMatrix:
    return pack("F32", Stored(0, list(weights.view(np.uint8)), weights.shape[1]))


def ones(outputs: int) -> _native_test.PackedMatrix:
    return fp32_matrix(np.ones((outputs, 1), np.float32))


def through(tier: str, values: Floats, **epilogue: object) -> Floats:
    """Return each value after the epilogue."""
    return multiply(tier, ones(1), values.reshape(-1, 1), **epilogue)[:, 0]


def spread() -> Floats:
    """Return numbers of every size and sign, dense where the functions bend."""
    dense = np.linspace(-12, 12, 20_001).astype(np.float32)
    sizes = np.logspace(-44, 38.5, 4_001).astype(np.float32)
    edges = np.array([0, -0.0, 0.625, 1.0, 3.95, 88.72, 89, 104], np.float32)
    return np.concatenate([dense, sizes, -sizes, edges, -edges])


# ---- functions ----


@every_tier
def test_tanh_of_the_soft_cap_is_accurate(tier: str) -> None:
    """The error is at most two units in the last place, at cap 1."""
    x = spread()
    got, expected = through(tier, x, cap=1.0), np.tanh(x.astype(np.float64))
    unit = np.spacing(np.abs(expected).astype(np.float32)).astype(np.float64)
    assert (np.abs(got - expected) <= 2 * unit).all()


@every_tier
def test_sigmoid_is_accurate_down_to_where_it_vanishes(tier: str) -> None:
    """exp within two units: the sigmoid of a very negative number is exp itself."""
    x = spread()
    x = x[np.abs(x) < 87]
    got, expected = through(tier, x, activation="sigmoid"), logistic(x.astype(np.float64))
    assert (np.abs(got - expected) <= 3 * 2.0**-23 * expected).all()


@pytest.mark.parametrize("name", sorted(REFERENCE))
@every_tier
def test_activation(tier: str, name: str) -> None:
    x = spread()
    x = x[np.abs(x) < 1e12]
    got, expected = through(tier, x, activation=name), REFERENCE[name](x.astype(np.float64))
    # 1 + erf and 1 + tanh cancel for negative numbers: what is lost is a part of |x|, not of y.
    lost = np.abs(x) if name.startswith("gelu") else np.abs(expected)
    # A sigmoid below the smallest normal number may be zero.
    vanished = 2.0**-126 * np.maximum(np.abs(x), 1)
    assert (np.abs(got - expected) <= 4 * 2.0**-23 * lost + vanished).all()


@pytest.mark.parametrize("name", [*sorted(REFERENCE), "cap"])
def test_functions_have_equal_bits_in_every_tier(name: str) -> None:
    asked: dict[str, object] = {"cap": 30.0} if name == "cap" else {"activation": name}
    results = [through(tier, spread(), **asked) for tier in TIERS]
    for result in results[1:]:
        np.testing.assert_array_equal(np.isnan(result), np.isnan(results[0]))
        finite = ~np.isnan(result)
        np.testing.assert_array_equal(bits(result)[finite], bits(results[0])[finite])


@pytest.mark.parametrize("name", [*sorted(REFERENCE), "cap"])
@every_tier
def test_a_value_has_equal_bits_in_every_column(tier: str, name: str) -> None:
    """Whole vectors and the ragged end of a panel compute alike."""
    asked: dict[str, object] = {"cap": 30.0} if name == "cap" else {"activation": name}
    values = numbers(1, 50) * 4
    expected = bits(through(tier, values, **asked))
    for outputs in (*range(1, 33), 47, 48, 63):
        got = multiply(tier, ones(outputs), values[:, None], **asked)
        np.testing.assert_array_equal(bits(got), np.repeat(expected[:, None], outputs, 1))


@every_tier
def test_not_a_number_is_never_hidden(tier: str) -> None:
    x = np.array([np.nan, -np.nan], np.float32)
    for name in REFERENCE:
        assert np.isnan(through(tier, x, activation=name)).all()
    assert np.isnan(through(tier, x, cap=2.0)).all()


@every_tier
def test_infinities(tier: str) -> None:
    x = np.array([np.inf, -np.inf], np.float32)
    assert through(tier, x, cap=5.0).tolist() == [5, -5]
    assert through(tier, x, activation="sigmoid").tolist() == [1, 0]
    assert through(tier, x, activation="relu").tolist() == [np.inf, 0]
    assert through(tier, x[:1], activation="silu").tolist() == [np.inf]


# ---- the order of things ----


def plain(tier: str, weights: Floats, x: Floats) -> Doubles:
    return multiply(tier, fp32_matrix(weights), x).astype(np.float64)


@pytest.mark.parametrize("outputs", [1, 31, 32, 33, 70])
@every_tier
def test_bias_scale_cap_activation_residual_in_this_order(tier: str, outputs: int) -> None:
    weights, x = numbers(2, outputs, 24), numbers(3, 9, 24)
    bias, residual = numbers(4, outputs), numbers(5, 9, outputs)
    sums = plain(tier, weights, x)
    for flags in itertools.product((False, True), repeat=5):
        with_bias, with_scale, with_cap, active, with_residual = flags
        expected = sums + bias if with_bias else sums
        expected = expected * 0.37 if with_scale else expected
        expected = np.tanh(expected / 1.5) * 1.5 if with_cap else expected
        expected = REFERENCE["silu"](expected) if active else expected
        expected = expected + residual if with_residual else expected
        got = multiply(
            tier, fp32_matrix(weights), x,
            bias=bias if with_bias else None,
            scale=0.37 if with_scale else 1.0,
            cap=1.5 if with_cap else 0.0,
            activation="silu" if active else "none",
            residual=residual if with_residual else None,
        )  # fmt: skip
        np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6)


@every_tier
def test_outputs_begin_where_they_are_told_and_touch_nothing_else(tier: str) -> None:
    weights, x = numbers(6, 37, 8), numbers(7, 3, 8)
    whole = multiply(tier, fp32_matrix(weights), x)
    residual = np.zeros((3, 60), np.float32)
    residual[:, 11:48] = 2
    got = multiply(tier, fp32_matrix(weights), x, columns=60, first_output=11, residual=residual)
    np.testing.assert_array_equal(got[:, 11:48], whole + np.float32(2))
    assert np.isnan(got[:, :11]).all()
    assert np.isnan(got[:, 48:]).all()


@every_tier
def test_residual_may_be_the_output_itself(tier: str) -> None:
    weights, x = numbers(8, 45, 8), numbers(9, 4, 8)
    hidden = numbers(10, 4, 45)
    expected = multiply(tier, fp32_matrix(weights), x, residual=hidden)
    multiply(tier, fp32_matrix(weights), x, residual=hidden, out=hidden)
    np.testing.assert_array_equal(hidden, expected)


# ---- gates ----


def interleaved(gate: Floats, up: Floats) -> Floats:
    """Interleave 16 gates with their 16 ups, and so on; zeros follow the last gates."""
    panels = []
    for first in range(0, len(gate), 16):
        part = gate[first : first + 16]
        filling = np.zeros((16 - len(part), *gate.shape[1:]), np.float32)
        panels += [part, filling, up[first : first + 16]]
    return np.concatenate(panels)


def gated_reference(name: str, gate: Doubles, up: Doubles) -> Doubles:
    if name != "clamped_swiglu":
        return REFERENCE[name](gate) * up
    gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
    return (up + 1) * gate * logistic(1.702 * gate)


@pytest.mark.matrix
@pytest.mark.parametrize("name", [*sorted(REFERENCE), "clamped_swiglu"])
@pytest.mark.parametrize("width", [1, 8, 15, 16, 17, 32, 49])
@every_tier
def test_gates(tier: str, width: int, name: str) -> None:
    gate, up, x = numbers(11, width, 20), numbers(12, width, 20), numbers(13, 7, 20)
    gate_bias, up_bias = numbers(14, width), numbers(15, width)
    got = multiply(
        tier, fp32_matrix(interleaved(gate, up)), x, columns=width + 3, first_output=2, gated=True,
        activation=name, bias=interleaved(gate_bias, up_bias),
    )  # fmt: skip
    expected = gated_reference(name, plain(tier, gate, x) + gate_bias, plain(tier, up, x) + up_bias)
    np.testing.assert_allclose(got[:, 2 : 2 + width], expected, rtol=3e-6, atol=3e-6)
    assert np.isnan(got[:, :2]).all()
    assert np.isnan(got[:, 2 + width :]).all()


# ---- experts ----


@every_tier
def test_rows_of_an_expert_are_weighed_and_added_where_they_belong(tier: str) -> None:
    weights, x = numbers(16, 50, 12), numbers(17, 20, 12)
    out_rows = np.random.default_rng(18).permutation(30)[:20].astype(np.int32)
    row_weights = numbers(19, 20)
    out = numbers(20, 30, 50)
    expected = out.copy()
    product = multiply(tier, fp32_matrix(weights), x)
    for row, to in enumerate(out_rows):
        expected[to] = expected[to] + product[row] * row_weights[row]
    multiply(tier, fp32_matrix(weights), x, out=out, out_rows=out_rows, row_weights=row_weights)
    np.testing.assert_array_equal(bits(out), bits(expected))


@every_tier
def test_rows_may_go_elsewhere_without_weights(tier: str) -> None:
    weights, x = numbers(21, 40, 12), numbers(22, 3, 12)
    out = np.full((5, 40), np.nan, np.float32)
    multiply(tier, fp32_matrix(weights), x, out=out, out_rows=np.array([4, 0, 2], np.int32))
    product = multiply(tier, fp32_matrix(weights), x)
    np.testing.assert_array_equal(out[[4, 0, 2]], product)
    assert np.isnan(out[[1, 3]]).all()
