"""Each operation equals its formula, written here in another way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from octavo.backends.step import batch_of_copies
from octavo.backends.torch import experts, ops
from octavo.backends.torch.backend import TorchBackend
from octavo.backends.torch.weights import TorchExperts
from octavo.layers import Rope, Routing
from octavo.layers.rope import plain
from octavo.program.listing import Mixture, Norm


def some(*shape: int, seed: int = 0) -> Tensor:
    """Return random numbers of this shape."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 2


def test_linear_is_a_product_and_a_bias() -> None:
    for rows, inputs, outputs in ((1, 7, 3), (8, 16, 5), (21, 33, 64)):
        x, weight, bias = some(rows, inputs), some(outputs, inputs, seed=1), some(outputs, seed=2)
        expected = x.double() @ weight.double().T
        torch.testing.assert_close(ops.linear(x, weight, None), expected.float())
        torch.testing.assert_close(ops.linear(x, weight, bias), (expected + bias).float())


@pytest.mark.parametrize("offset", [0.0, 1.0])
def test_rms_norm(offset: float) -> None:
    x, weight = some(4, 10), some(10, seed=1)
    rms = torch.tensor([math.sqrt(sum(v * v for v in row) / 10 + 1e-5) for row in x.tolist()])
    expected = x / rms[:, None] * (offset + weight)
    torch.testing.assert_close(ops.norm(x, Norm(weight, None, 1e-5, offset, is_rms=True)), expected)


def test_layer_norm() -> None:
    x, weight, bias = some(4, 10), some(10, seed=1), some(10, seed=2)
    expected = functional.layer_norm(x, (10,), weight, bias, 1e-5)
    torch.testing.assert_close(ops.norm(x, Norm(weight, bias, 1e-5, 0.0, is_rms=False)), expected)
    expected = functional.layer_norm(x, (10,), weight, None, 1e-5)
    torch.testing.assert_close(ops.norm(x, Norm(weight, None, 1e-5, 0.0, is_rms=False)), expected)


def test_each_head_is_normalised_separately() -> None:
    """The heads share one vector of weights, or each has its own row."""
    x = some(5, 3 * 8)
    weight, rows = some(8, seed=1), some(3, 8, seed=2)
    shared = Norm(weight, None, 1e-6, 0.0, is_rms=True, heads=3)
    own = Norm(rows, None, 1e-6, 0.0, is_rms=False, heads=3, weight_a_head=True)
    for head in range(3):
        part = slice(8 * head, 8 * head + 8)
        expected = ops.norm(x[:, part], Norm(weight, None, 1e-6, 0.0, is_rms=True))
        assert torch.equal(ops.norm(x, shared)[:, part], expected)
        expected = functional.layer_norm(x[:, part], (8,), rows[head], None, 1e-6)
        torch.testing.assert_close(ops.norm(x, own)[:, part], expected)


@pytest.mark.parametrize("interleaved", [False, True])
def test_rope_rotates_pairs_like_complex_numbers(interleaved: bool) -> None:
    """Six of the eight dimensions are rotated, and large positions stay precise."""
    rope = Rope(plain(6, 100.0), interleaved, magnitude=1.5)
    x, positions = some(4, 2 * 8), torch.tensor([0, 1, 17, 4000])
    heads = x.reshape(4, 2, 8).double().numpy()
    pairs = [(0, 1), (2, 3), (4, 5)] if interleaved else [(0, 3), (1, 4), (2, 5)]
    expected = heads.copy()
    for index, (one, other) in enumerate(pairs):
        frequency = np.float64(np.float32(100.0 ** (-index / 3)))
        turn = 1.5 * np.exp(1j * positions.numpy()[:, None] * frequency)
        both = (heads[..., one] + 1j * heads[..., other]) * turn
        expected[..., one], expected[..., other] = both.real, both.imag
    result = (
        ops.rotate(x, ops.rope_tables(positions, rope, x.dtype), rope, 8)
        .double()
        .reshape(4, 2, 8)
        .numpy()
    )
    np.testing.assert_allclose(result, expected, rtol=0, atol=3e-3)
    np.testing.assert_allclose(result[:3], expected[:3], rtol=0, atol=3e-5)


@pytest.mark.parametrize(
    ("name", "reference"),
    [
        ("Silu", functional.silu),
        ("GeluErf", functional.gelu),
        ("GeluTanh", lambda x: functional.gelu(x, approximate="tanh")),
        ("Relu", functional.relu),
        ("Relu2", lambda x: functional.relu(x) ** 2),
    ],
)
def test_activations(name: str, reference: object) -> None:
    """Activations equal torch's in double precision, up to the ends of the float range."""
    assert callable(reference)
    x = torch.cat((some(500) * 2, torch.tensor([0.0, -0.0, 90.0, -90.0, 3e38, -3e38])))[None]
    if name == "Relu2":
        x = x[:, :-2]
    expected = reference(x.double()).float()
    torch.testing.assert_close(ops.ACTIVATIONS[name](x), expected, rtol=1e-6, atol=1e-6)
    gates, ups = x[:, :500], x[:, :500] + 1
    gated = expected[:, :500] * ups
    torch.testing.assert_close(ops.gate(gates, ups, name), gated, rtol=1e-5, atol=1e-5)


def test_clamped_swiglu_clamps_before_anything_else() -> None:
    gates, ups = torch.tensor([[-9.0, 2.0, 9.0]]), torch.tensor([[9.0, -9.0, 0.5]])
    clamped_gate, clamped_up = [-9.0, 2.0, 7.0], [7.0, -7.0, 0.5]
    expected = [
        (u + 1) * g / (1 + math.exp(-1.702 * g))
        for g, u in zip(clamped_gate, clamped_up, strict=True)
    ]
    result = ops.gate(gates, ups, "ClampedSwiglu")
    torch.testing.assert_close(result, torch.tensor([expected]))


def test_sigmoid_and_soft_cap() -> None:
    x = torch.tensor([[-200.0, -1.0, 0.0, 1.0, 200.0]])
    torch.testing.assert_close(ops.sigmoid(x), torch.sigmoid(x.double()).float())
    torch.testing.assert_close(ops.soft_cap(x, 30.0), 30 * torch.tanh(x.double() / 30).float())


SCORES = torch.tensor([[1.0, 3.0, -1.0, 2.0]])


def shares(*scores: float) -> Tensor:
    return torch.softmax(torch.tensor(scores, dtype=torch.float32), -1)


@pytest.mark.parametrize(
    ("routing", "expected"),
    [
        (Routing(2), shares(1, 3, -1, 2)[[1, 3]]),
        (Routing(2, normalise=True), shares(3, 2)),
        (Routing(2, "chosen"), shares(3, 2)),
        (Routing(2, "chosen", scale=2.5), shares(3, 2) * 2.5),
        (Routing(2, "sigmoid"), torch.sigmoid(torch.tensor([3.0, 2.0]))),
    ],
)
def test_routing(routing: Routing, expected: Tensor) -> None:
    weights, chosen = ops.route(SCORES, routing, None)
    assert chosen.tolist() == [[1, 3]]
    torch.testing.assert_close(weights, expected[None])


def test_a_routing_bias_affects_the_choice_but_not_the_weights() -> None:
    bias = torch.tensor([0.0, -1.0, 0.9, 0.0])
    weights, chosen = ops.route(SCORES, Routing(2, "sigmoid"), bias)
    assert chosen.tolist() == [[2, 3]]
    torch.testing.assert_close(weights, torch.sigmoid(torch.tensor([[-1.0, 2.0]])))


@pytest.mark.parametrize("bias", [False, True])
def test_experts_are_a_weighted_sum_of_gated_mlps(bias: bool) -> None:
    gate_up, down = some(3, 8, 6, seed=1), some(3, 6, 4, seed=3)
    gate_up_bias, down_bias = some(3, 8, seed=2), some(3, 6, seed=4)
    matrices = TorchExperts(gate_up), TorchExperts(down)
    biases = (gate_up_bias, down_bias) if bias else (None, None)
    mixture = Mixture(*matrices, biases[0], biases[1], "Silu")
    x, chosen = some(2, 6), torch.tensor([[2, 0], [1, 2]])
    weights = torch.tensor([[0.7, 0.3], [0.6, 0.1]])
    expected = torch.zeros(2, 6)
    for row in range(2):
        for expert, weight in zip(chosen[row], weights[row], strict=True):
            both = gate_up[expert] @ x[row] + bias * gate_up_bias[expert]
            inner = functional.silu(both[:4]) * both[4:]
            expected[row] += weight * (down[expert] @ inner + bias * down_bias[expert])
    torch.testing.assert_close(experts.mix(x, weights, chosen, mixture), expected)


def test_a_backend_keeps_weights_in_its_own_type() -> None:
    weight = np.ones((2, 3), np.float32)
    assert TorchBackend("bfloat16").parameter(weight).dtype == torch.bfloat16
    assert TorchBackend().parameter(weight).dtype == torch.float32
    with pytest.raises(ValueError, match="'float8' is not one of float32, bfloat16"):
        TorchBackend("float8")
    with pytest.raises(AssertionError, match="prepare must be called first"):
        TorchBackend().forward(batch_of_copies(((1, 2, 0),)))
