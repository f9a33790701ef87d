"""Cases of mixtures of experts, whose rows are sorted on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.backends.cuda.kernels import experts
from octavo.backends.torch import experts as meaning
from octavo.backends.torch.weights import TorchExperts
from octavo.program.listing import Mixture
from tests.gpu_blind.case import Case, random_rows
from tests.gpu_blind.cases import BF16, FP16, FP32
from tests.gpu_blind.homes import Home


class Mixed(NamedTuple):
    """A mixture, and the rows that choose among its experts."""

    rows: int = 7
    experts: int = 5
    top_k: int = 2
    hidden: int = 96
    ffn: int = 40
    activation: str = "Silu"
    has_bias: bool = False
    absent: tuple[int, ...] = ()  # rows that are none
    popular: int = 0  # rows that all choose the first experts


def mixture_of(shape: Mixed, dtype: torch.dtype) -> Mixture:
    """Return random experts, whose outputs are about as large as their rows."""
    count, hidden, ffn = shape.experts, shape.hidden, shape.ffn
    gate_up = random_rows(count, 2 * ffn, hidden, seed=51) * 2 * hidden**-0.5
    down = random_rows(count, hidden, ffn, seed=52) * 2 * ffn**-0.5
    of_gate_up = of_down = None
    if shape.has_bias:
        of_gate_up = random_rows(count, 2 * ffn, seed=53, dtype=dtype)
        of_down = random_rows(count, hidden, seed=54, dtype=dtype)
    matrices = TorchExperts(gate_up.to(dtype)), TorchExperts(down.to(dtype))
    return Mixture(*matrices, of_gate_up, of_down, shape.activation)


def chosen_by(shape: Mixed, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return weights and numbers of the experts that each row chooses."""
    scores = random_rows(shape.rows, shape.experts, seed=55)
    scores[: shape.popular, : shape.top_k] += 100
    weights, chosen = torch.softmax(scores, -1).topk(shape.top_k)
    return weights.to(dtype), chosen


def mixture_case(dtype: torch.dtype, name: str, shape: Mixed | None = None) -> Case:
    """Return a case of a mixture; rows that are none become zero."""
    shape = shape or Mixed()
    mixture = mixture_of(shape, dtype)
    weights, chosen = chosen_by(shape, dtype)
    x = random_rows(shape.rows, shape.hidden + 32, seed=50, dtype=dtype)
    x = x[:, 16 : 16 + shape.hidden]
    positions = torch.arange(shape.rows) + 3
    absent = list(shape.absent)
    positions[absent] = -1
    expected = meaning.mix(x, weights, chosen, mixture)
    expected[absent] = 0
    return Case(
        f"experts {name} {dtype}",
        lambda home: experts.mix(x, weights, chosen, mixture, home, positions if absent else None),
        expected,
        4 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5,
    )


def cancelling_case() -> Case:
    """Return a case whose sum shows the order of its terms: those of experts 0, 1 and 2."""
    terms = torch.tensor([[1e8], [-1e8], [1.0]]).repeat(1, 24)
    nothing = TorchExperts(torch.zeros(3, 16, 24)), TorchExperts(torch.zeros(3, 24, 8))
    mixture = Mixture(*nothing, torch.zeros(3, 16), terms, "Silu")
    x, weights, chosen = torch.ones(2, 24), torch.ones(2, 3), torch.tensor([[2, 0, 1], [0, 2, 1]])
    return Case(
        "experts that cancel each other",
        lambda home: experts.mix(x, weights, chosen, mixture, home),
        torch.ones(2, 24),
        0.0,
    )


def expert_cases() -> list[Case]:
    """Return cases that take a second or so each."""
    full = Mixed(48, 3, 2, popular=40)  # experts with more rows than a tile
    return [
        *(mixture_case(dtype, "of few rows") for dtype in (BF16, FP16, FP32)),
        cancelling_case(),
        mixture_case(BF16, "of many rows", full),
        mixture_case(FP32, "of rows that are none", full._replace(absent=(0, 7, 8, 47))),
        mixture_case(BF16, "with biases", Mixed(activation="ClampedSwiglu", has_bias=True)),
        mixture_case(BF16, "of wide rows", Mixed(rows=3, hidden=152, ffn=136, activation="Relu2")),
    ]


def one_row_in_batches(dtype: torch.dtype, home: Home) -> Sequence[Tensor]:
    """Return the outputs of one row: alone, and in other places among others."""
    shape = Mixed(36, 3, 2, 72, 40, has_bias=True, popular=34)
    mixture, (weights, chosen) = mixture_of(shape, dtype), chosen_by(shape, dtype)
    others = random_rows(shape.rows, shape.hidden, seed=56, dtype=dtype)
    row = random_rows(1, shape.hidden, seed=57, dtype=dtype)
    found = [experts.mix(row, weights[:1], chosen[:1], mixture, home)[0]]
    for place in (5, shape.rows - 1):
        x, of_rows, choices = others.clone(), weights.clone(), chosen.clone()
        x[place], of_rows[place], choices[place] = row[0], weights[0], chosen[0]
        found.append(experts.mix(x, of_rows, choices, mixture, home)[place])
    return found
