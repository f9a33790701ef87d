"""Products of rows and weights that both are of eight bits, by the card's own instructions.

They are chosen for a shape when a matrix of it is loaded, by one product: it must be computed at
all, have the values of the meaning, and give a row the same bits at every place of a tile. Where it
does not, weights become floats for each product, which is the meaning (torch/weights.py).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.torch import eight_bits, ops
from octavo.backends.torch.weights import TorchExperts, TorchMatrix
from octavo.program.listing import Instruction

# What rounds rows: to codes, and their scales [rows, 1].
Rounding = Callable[[Tensor, float | None], tuple[Tensor, Tensor]]
# Of the largest result: both sides are rounded to bfloat16, and a card may add up in fewer bits
# than float32 has.
_TOLERANCE = 2**-6
_COMPARED = 256  # outputs whose products are compared with the meaning's


class Rounded(NamedTuple):
    """Rows of eight bits, and further rows that fill the last tile, which mean nothing."""

    codes: Tensor
    scales: Tensor  # [rows, 1]
    num_rows: int  # that mean something
    dtype: torch.dtype  # that products have


@dataclass(frozen=True, eq=False, slots=True)
class ScaledMatrix(TorchMatrix):
    """A matrix whose products a card computes of codes; each row and each output has a scale."""

    rounding: Rounding = eight_bits.rounded
    whole_scale: Tensor | None = None  # of all outputs, where rows have one scale for all too

    def formed(self, x: Tensor) -> Rounded:
        missing = -len(x) % ops.tile_rows(x.device)
        padded = functional.pad(x, (0, 0, 0, missing)) if missing else x
        return Rounded(*self.rounding(padded, scale_in(self.kind)), len(x), x.dtype)

    def product_of(self, formed: Any, bias: Tensor | None) -> Tensor:
        assert isinstance(formed, Rounded)
        codes, scales, count, dtype = formed
        y = codes.new_empty(len(codes), self.outputs, dtype=dtype)
        tile = ops.tile_rows(codes.device)
        assert self.scales is not None
        of_outputs = self.scales.t() if self.whole_scale is None else self.whole_scale
        for start in range(0, len(codes), tile):
            rows = slice(start, start + tile)
            of_rows = scales[rows] if self.whole_scale is None else scales[:1]
            torch._scaled_mm(
                *(codes[rows], self.values.t(), of_rows, of_outputs),
                out_dtype=dtype,
                out=y[rows],
            )
        y = y[:count]
        return y if bias is None else y + bias


@dataclass(frozen=True, eq=False, slots=True)
class ScaledExperts(TorchExperts):
    """Matrices whose products a card computes of codes."""

    rounding: Rounding = eight_bits.rounded

    def matrix(self, number: int) -> TorchMatrix:
        assert self.scales is not None
        return ScaledMatrix(
            self.values[number],
            kind=self.kind,
            scales=self.scales[number],
            group=self.group,
            rounding=self.rounding,
        )


def scaled_matrix(made: TorchMatrix, rounding: Rounding) -> ScaledMatrix:
    """Return a matrix with the products of a card; it waits for the card."""
    assert made.scales is not None
    whole = None
    if scale_in(made.kind) is not None and bool((made.scales == made.scales[:1]).all()):
        whole = made.scales[:1]
    form = made.gated, made.kind, made.scales, made.group
    return ScaledMatrix(made.values, *form, rounding, whole)


def trial_fault(outputs: int, inputs: int, home: Accelerator, *, is_static: bool) -> str:
    """Return what is wrong with a card's products of a shape; empty if nothing is.

    Where rows have one scale for all, there are products by one scale of each side too.
    """
    try:
        forms = (False, True) if is_static else (False,)
        found = [_fault(outputs, inputs, home, is_whole=each) for each in forms]
    except RuntimeError as error:
        return f"the card refuses them: {error}"
    return next(filter(None, found), "")


def _fault(outputs: int, inputs: int, home: Accelerator, *, is_whole: bool) -> str:
    """Return what is wrong with a product of a tile of equal rows; empty if nothing is."""
    generator = torch.Generator().manual_seed(0)
    device, dtype = home.device, torch.bfloat16
    rows = torch.randn(1, inputs, generator=generator).to(dtype).to(device)
    rows = rows.repeat(ops.tile_rows(device), 1)
    unlike = min(outputs, _COMPARED)
    few = torch.randn(unlike, inputs, generator=generator).to(device).to(eight_bits.CODES)
    few_scales = (torch.rand(unlike, 1, generator=generator) + 0.5).to(device)
    kind, whole = "fp8", None
    if is_whole:
        kind, whole = f"fp8 {(2**-6).hex()}", few_scales[:1]
        few_scales = whole.repeat(unlike, 1)
    times = -(-outputs // unlike)
    codes = few.view(torch.uint8).repeat(times, 1)[:outputs].contiguous().view(eight_bits.CODES)
    scales = few_scales.repeat(times, 1)[:outputs].contiguous()
    made = ScaledMatrix(codes, kind=kind, scales=scales, group=inputs, whole_scale=whole)
    found = made.product(rows, None)
    if not bool((found == found[:1]).all()):
        return "the bits of a row depend on its place in a tile"
    expected = TorchMatrix(few, False, kind, few_scales, inputs).product(rows[:1], None)
    error = (found[:1, :unlike].float() - expected.float()).abs().max()
    if not bool(error <= _TOLERANCE * expected.float().abs().max()):
        return "they have other values than those of floats"
    return ""


def reads_codes(gemm: Instruction) -> bool:
    """Return whether a product reads rows of eight bits, and nothing else that is made of them."""
    has_others = gemm.adapters is not None and gemm.adapters.has_wholes
    return isinstance(gemm.matrix, ScaledMatrix) and not has_others


def scale_in(kind: str) -> float | None:
    """Return the scale that a form has for all rows, if it has one."""
    _, *numbers = kind.split()
    return float.fromhex(numbers[0]) if numbers else None
