"""A row's result depends only on the row: no neighbour, position, batch or thread changes a bit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from octavo.backends.torch import experts, ops
from octavo.backends.torch.device import HOST
from octavo.backends.torch.ops import LEAST_TILED_OUTPUTS, MOST_TILED_OUTPUTS, TILE_ROWS
from octavo.backends.torch.run import Run
from octavo.backends.torch.weights import TorchExperts
from octavo.env import child_environment
from octavo.layers import Rope, Routing
from octavo.layers.rope import plain
from octavo.program.listing import Mixture, Norm

ROWS = 2 * TILE_ROWS + 5
# Widths that fill whole vectors and tiles, and widths that leave a remainder.
WIDTHS = [1, 6, 33, 64, 100]
DTYPES = [torch.float32, torch.bfloat16]
ACTIVATIONS = ["Silu", "GeluErf", "GeluTanh", "Relu", "Relu2"]
Operation = Callable[[Tensor], Tensor]


def some(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return random numbers about as large as those of hidden states."""
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2).to(dtype)


def assert_rows_stand_alone(operation: Operation, x: Tensor) -> None:
    """Check that other rows, their order and the number of threads change no row's result."""
    torch.set_num_threads(1)
    expected = operation(x)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        assert torch.equal(operation(x), expected), f"{threads} threads change bits"
    torch.set_num_threads(1)
    for start in range(len(x)):
        for stop in (start + 1, start + 3, start + TILE_ROWS, len(x)):
            part = operation(x[start:stop].clone())
            assert torch.equal(part, expected[start:stop]), f"rows {start}..{stop} differ"
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(1))
    assert torch.equal(operation(x[order]), expected[order]), "the order of rows changes bits"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", WIDTHS)
@pytest.mark.parametrize("outputs", [*range(1, LEAST_TILED_OUTPUTS + 2), 31, 64, 97])
def test_linear(inputs: int, outputs: int, dtype: torch.dtype) -> None:
    weight = some(outputs, inputs, seed=1, dtype=dtype)
    bias = some(outputs, seed=2, dtype=dtype)
    x = some(ROWS, inputs, dtype=dtype)
    assert_rows_stand_alone(lambda rows: ops.linear(rows, weight, bias), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [1, 2, LEAST_TILED_OUTPUTS, 64])
def test_linear_where_the_library_sums_rows_by_position(
    outputs: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows stay exact even if the library sums the last rows of a tile in another way."""
    matrix_product = torch.mm

    def product(x: Tensor, weight: Tensor, *, out: Tensor) -> None:
        matrix_product(x, weight, out=out)
        out[6:] = (x[6:].double() @ weight.double()).to(out.dtype)

    weight, x = some(outputs, 64, seed=1, dtype=dtype), some(ROWS, 64, dtype=dtype)
    ops._place_matters.cache_clear()
    monkeypatch.setattr(torch, "mm", product)
    try:
        assert_rows_stand_alone(lambda rows: ops.linear(rows, weight, None), x)
        assert ops._place_matters(outputs, 64, dtype)
    finally:
        ops._place_matters.cache_clear()


@pytest.mark.parametrize("most", [MOST_TILED_OUTPUTS, sys.maxsize], ids=("host", "card"))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [520, 1000, 2 * MOST_TILED_OUTPUTS + 3])
def test_linear_where_the_library_has_another_kernel_for_many_outputs(
    outputs: int, dtype: torch.dtype, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shape that is computed is tested itself, not a smaller one."""
    matrix_product = torch.mm

    def product(x: Tensor, weight: Tensor, *, out: Tensor) -> None:
        matrix_product(x, weight, out=out)
        if weight.shape[1] > 512:
            out[6:] = (x[6:].double() @ weight.double()).to(out.dtype)

    weight, x = some(outputs, 64, seed=1, dtype=dtype), some(TILE_ROWS + 5, 64, dtype=dtype)
    ops._place_matters.cache_clear()
    monkeypatch.setattr(torch, "mm", product)
    monkeypatch.setattr(ops, "_most_outputs", lambda device: most)
    try:
        assert_rows_stand_alone(lambda rows: ops.linear(rows, weight, None), x)
        assert ops._place_matters(min(outputs, most), 64, dtype)
    finally:
        ops._place_matters.cache_clear()


@pytest.mark.parametrize("most", [MOST_TILED_OUTPUTS, sys.maxsize], ids=("host", "card"))
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("outputs", [MOST_TILED_OUTPUTS, MOST_TILED_OUTPUTS + 17])
def test_linear_of_many_outputs(
    outputs: int, dtype: torch.dtype, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "_most_outputs", lambda device: most)
    weight, bias = some(outputs, 33, seed=1, dtype=dtype), some(outputs, seed=2, dtype=dtype)
    x = some(TILE_ROWS + 5, 33, dtype=dtype)
    expected = (x.double() @ weight.double().t()).to(dtype) + bias
    assert torch.allclose(ops.linear(x, weight, bias), expected, rtol=2**-6, atol=1e-3)
    assert_rows_stand_alone(lambda rows: ops.linear(rows, weight, bias), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("inputs", [1, 6, 33, 100])
def test_ordered_products_are_right(
    inputs: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum in a fixed order is as close to the true product as the type allows."""
    monkeypatch.setattr(ops, "_ORDERED_TERMS", 2 * inputs)  # several parts of the weight
    weight, x = some(7, inputs, seed=1, dtype=dtype), some(ROWS, inputs, dtype=dtype)
    expected = (x.double() @ weight.double().t()).to(dtype)
    assert torch.allclose(ops._ordered_product(x, weight), expected, rtol=2**-7, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["COMPATIBLE", "AVX2"])
def test_linear_with_other_kernels(kernels: str) -> None:
    """The tests of `linear` pass with MKL kernels whose sums depend on a row's position."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    command += ["-k", "linear", "-m", "not slow"]
    done = subprocess.run(
        command, env=child_environment({"MKL_CBWR": kernels}), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_linear_of_a_part_of_wider_rows() -> None:
    """A view into a wider tensor gives the same result as a copy of its rows."""
    weight, wide = some(40, 64, seed=1), some(ROWS, 192)
    part = wide[:, 64:128]
    assert torch.equal(ops.linear(part, weight, None), ops.linear(part.clone(), weight, None))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*ACTIVATIONS, "sigmoid", "soft cap"])
def test_functions_of_single_numbers(name: str, width: int, dtype: torch.dtype) -> None:
    x = some(ROWS, width, dtype=dtype)
    match name:
        case "sigmoid":
            assert_rows_stand_alone(ops.sigmoid, x)
        case "soft cap":
            assert_rows_stand_alone(lambda rows: ops.soft_cap(rows, 5.0), x)
        case _:
            assert_rows_stand_alone(lambda rows: ops.ACTIVATIONS[name](rows), x)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*ACTIVATIONS, "ClampedSwiglu"])
def test_gated_activations(name: str, width: int) -> None:
    def gated(rows: Tensor) -> Tensor:
        gates, ups = rows.chunk(2, dim=-1)
        return ops.gate(gates, ups, name)

    assert_rows_stand_alone(gated, some(ROWS, 2 * width))


@pytest.mark.parametrize("name", ["Silu", "GeluErf", "GeluTanh"])
def test_a_tensor_split_among_threads(name: str) -> None:
    """The results do not depend on where one thread's part ends."""
    x = some(1, 70_001)
    torch.set_num_threads(1)
    expected = ops.ACTIVATIONS[name](x)
    torch.set_num_threads(2)
    assert torch.equal(ops.ACTIVATIONS[name](x), expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_norms(width: int) -> None:
    x, weight, bias = some(ROWS, width), some(width, seed=1), some(width, seed=2)
    rms, layer = (
        Norm(weight, None, 1e-6, 1.0, is_rms=True),
        Norm(weight, bias, 1e-6, 0.0, is_rms=False),
    )
    assert_rows_stand_alone(lambda rows: ops.norm(rows, rms), x)
    assert_rows_stand_alone(lambda rows: ops.norm(rows, layer), x)


@pytest.mark.parametrize("dimensions", [6, 64])
def test_norms_of_heads(dimensions: int) -> None:
    norm = Norm(some(dimensions, seed=1), None, 1e-6, 0.0, is_rms=True, heads=3)
    assert_rows_stand_alone(lambda rows: ops.norm(rows, norm), some(ROWS, 3 * dimensions))


def rotated(x: Tensor, positions: Tensor, rope: Rope) -> Tensor:
    return ops.rotate(x, ops.rope_tables(positions, rope, x.dtype), rope, 16)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope(interleaved: bool) -> None:
    """The first number of each row here is its position; the rest is rotated."""
    rope = Rope(plain(12, 100.0), interleaved)
    x = torch.cat((torch.arange(ROWS)[:, None] * 7.0, some(ROWS, 3 * 16)), 1)
    assert_rows_stand_alone(lambda rows: rotated(rows[:, 1:], rows[:, 0].long(), rope), x)


def test_cached_rope_tables_match_their_rope_and_positions() -> None:
    """The tables of a step's positions are kept by rope and data type, and never mixed up."""
    ropes = [Rope(plain(16, 100.0)), Rope(plain(16, 50.0)), Rope(plain(16, 100.0), True, 1.5)]
    for positions in (torch.arange(ROWS), torch.arange(ROWS) + 5):
        batch: Any = SimpleNamespace(positions=positions, buffers=SimpleNamespace(home=HOST))
        run = Run(batch)
        for _ in range(2):
            for dtype in DTYPES:
                x = some(ROWS, 32, dtype=dtype)
                for rope in (*ropes, ropes[0]):
                    assert torch.equal(run.rotate(x, rope, 16), rotated(x, positions, rope))
        assert len(run.turns) == len(DTYPES) * len(ropes)


@pytest.mark.parametrize("scores", ["softmax", "chosen", "sigmoid"])
@pytest.mark.parametrize("num_experts", [4, 33])
def test_routing(scores: Any, num_experts: int) -> None:
    routing = Routing(3, scores, normalise=True, scale=1.5)
    x, bias = some(ROWS, num_experts), some(num_experts, seed=1)
    assert_rows_stand_alone(lambda rows: ops.route(rows, routing, bias)[0], x)
    assert_rows_stand_alone(lambda rows: ops.route(rows, routing, bias)[1], x)


def test_experts() -> None:
    """A row's result does not depend on the other rows that its experts process."""
    mixture = Mixture(
        TorchExperts(some(4, 40, 33, seed=1)),
        TorchExperts(some(4, 33, 20, seed=3)),
        some(4, 40, seed=2),
        some(4, 33, seed=4),
        "Silu",
    )
    router = some(4, 33, seed=5)

    def operation(rows: Tensor) -> Tensor:
        weights, chosen = ops.route(ops.linear(rows, router, None), Routing(2), None)
        return experts.mix(rows, weights, chosen, mixture)

    assert_rows_stand_alone(operation, some(ROWS, 33))


def test_the_check_itself_detects_a_dependence() -> None:
    """Neither a mean over the batch nor a result that changes between calls passes the check."""
    with pytest.raises(AssertionError, match="differ"):
        assert_rows_stand_alone(lambda rows: rows - rows.mean(0), some(ROWS, 8))
    calls = SimpleNamespace(count=0)

    def drifting(rows: Tensor) -> Tensor:
        calls.count += 1
        return rows + calls.count

    with pytest.raises(AssertionError, match="threads change bits"):
        assert_rows_stand_alone(drifting, some(ROWS, 8))
