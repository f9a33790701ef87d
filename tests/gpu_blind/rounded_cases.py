"""Cases of kernels that round what they make: to the bits of rounding by a launch of its own."""

from __future__ import annotations

from typing import Any

import torch

from octavo.backends.cuda.kernels import gate, norm
from octavo.backends.cuda.kernels.rounding import Results
from octavo.backends.torch import ops
from octavo.program.listing import Norm
from tests.gpu_blind.adapter_cases import adapter_cases
from tests.gpu_blind.case import Case, random_rows, rounded_case
from tests.gpu_blind.cases import (
    BF16,
    FP16,
    FP32,
    ROPE,
    Attention,
    attention_case,
    small_cases,
)
from tests.gpu_blind.expert_cases import expert_cases
from tests.gpu_blind.homes import Home


def rounded_norm_case(
    dtype: torch.dtype,
    name: str,
    width: int = 96,
    scale: float | None = None,
    *,
    adds: bool = False,
    has_floats: bool = False,
    **kind: Any,
) -> Case:
    """Return a case of norms, or of norms of sums, of columns of wider rows."""
    x, y = (
        random_rows(5, width + 32, seed=seed, dtype=dtype)[:, 16 : 16 + width] * 3
        for seed in (12, 13)
    )
    weight = random_rows(width, seed=2, dtype=dtype)
    bias = random_rows(width, seed=3, dtype=dtype) if kind.pop("has_bias", False) else None
    made = Norm(weight, bias, 1e-5, kind.pop("offset", 0.0), kind.pop("is_rms", True))

    def into(home: Home, results: Results) -> None:
        if adds:
            total = norm.add_norm_into(results, x, y, made, home)
            assert total.shape == x.shape
        else:
            norm.norm_into(results, x, made, home)

    expected = ops.norm(x + y if adds else x, made)
    return rounded_case(f"norm to codes, {name} {dtype}", into, expected, scale, has_floats)


def rounded_gate_case(
    dtype: torch.dtype,
    activation: str = "Silu",
    width: int = 200,
    scale: float | None = None,
    *,
    has_floats: bool = False,
) -> Case:
    """Return a case of gates in one tensor with their ups."""
    gates, ups = (random_rows(3, 2 * width, seed=4, dtype=dtype) * 4).chunk(2, 1)

    def into(home: Home, results: Results) -> None:
        gate.gate_into(results, gates, ups, activation, home)

    expected = ops.gate(gates, ups, activation)
    name = f"gate to codes {activation} {scale} {has_floats} {dtype}"
    return rounded_case(name, into, expected, scale, has_floats)


ALONE = Attention(rounds=True, sequences=((1, 1), (700, 1), (40, 1), (1100, 1)))


def rounded_cases() -> list[Case]:
    """Return cases that take a second or so each."""
    made = []
    for dtype in (BF16, FP16, FP32):
        made += [
            rounded_norm_case(dtype, "rms"),
            rounded_norm_case(dtype, "rms of sums", adds=True),
            rounded_gate_case(dtype),
            attention_case(dtype, "to codes", ALONE),
        ]
    made += [
        rounded_norm_case(BF16, "wide", 512),
        rounded_norm_case(BF16, "wide, of sums", 512, adds=True, has_floats=True),
        rounded_norm_case(BF16, "with an offset, by one scale", scale=0.013, offset=1.0),
        rounded_norm_case(BF16, "of layers", is_rms=False, has_bias=True, has_floats=True),
        rounded_norm_case(BF16, "of sums, by one scale", scale=0.013, adds=True),
        rounded_gate_case(BF16, "ClampedSwiglu", scale=0.02),
        rounded_gate_case(BF16, "GeluTanh", 2500, has_floats=True),
        attention_case(
            BF16, "to codes, with sinks and all heads", ALONE._replace(has_sinks=True, rope=ROPE)
        ),
        attention_case(BF16, "to codes, odd heads", ALONE._replace(dim=24, heads=6)),
        attention_case(BF16, "to codes, of prompts too", Attention(rounds=True)),
    ]
    return made


def all_cases() -> list[Case]:
    """Return the cases of all kernels."""
    return [*small_cases(), *rounded_cases(), *adapter_cases(), *expert_cases()]
