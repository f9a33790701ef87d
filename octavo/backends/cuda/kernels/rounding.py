"""Rounds rows to eight bits for a product: codes, and a scale of each row or the same for all."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.kernels.eight_bits import codes_of, exponent_of, inverse_of, scale_of
from octavo.backends.torch import eight_bits

# A program of 4 warps keeps 32 numbers of 4,096 in each thread's registers; wider rows get 8 warps.
_WIDE = 4096


@triton.jit
def round_rows(
    x,
    codes,
    scales,
    stride,  # numbers from a row of x to the next
    width,
    scale,  # of all rows, if they have one
    inverse,
    block: tl.constexpr,  # the power of two at or above width
    is_given: tl.constexpr,
):
    """Write the codes of one row and its scale."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, block)
    inside = at < width
    values = tl.load(x + row * stride + at, mask=inside, other=0.0).to(tl.float32)
    if is_given:
        tl.store(scales + row, scale)
        found = codes_of(values * inverse)
    else:
        exponent = exponent_of(values)
        tl.store(scales + row, scale_of(exponent, 0))
        found = codes_of(values * inverse_of(exponent))
    tl.store(codes + row * width + at, found, mask=inside)


def rounded(home: Accelerator, x: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """Return the codes of rows, and their scales [rows, 1]."""
    rows, width = x.shape
    codes = x.new_empty(rows, width, dtype=torch.uint8)
    scales = x.new_empty(rows, 1, dtype=torch.float32)
    is_given = scale is not None
    home.launch(
        round_rows,
        (rows,),
        (x, codes, scales),
        (
            *(x.stride(0), width),
            *((scale, eight_bits.inverse_of(scale)) if scale is not None else (1.0, 1.0)),
        ),
        block=triton.next_power_of_2(width),
        is_given=is_given,
        num_warps=8 if width > _WIDE else 4,
    )
    return codes.view(eight_bits.CODES), scales
