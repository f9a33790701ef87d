"""Rounds rows to eight bits for a product: codes, and a scale of each row or the same for all.

Kernels that make rows write their codes at once, as `Results` ask, with the bits that a launch of
its own would make of the same rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.kernels.eight_bits import codes_of, exponent_of, inverse_of, scale_of
from octavo.backends.cuda.products import Rounded, scale_in
from octavo.backends.torch import eight_bits
from octavo.backends.torch.ops import tile_rows

# A program of 4 warps keeps 32 numbers of 4,096 in each thread's registers; wider rows get 8 warps.
_WIDE = 4096


@triton.jit
def write_codes(
    values,  # float32, zero where none is inside
    codes,  # where that of each value goes
    scales,  # of the row
    inside,
    scale,  # of all rows, if they have one
    inverse,
    is_given: tl.constexpr,
):
    """Write the codes of one row and its scale."""
    if is_given:
        tl.store(scales, scale)
        found = codes_of(values * inverse)
    else:
        exponent = exponent_of(values)
        tl.store(scales, scale_of(exponent, 0))
        found = codes_of(values * inverse_of(exponent))
    tl.store(codes, found, mask=inside)


@triton.jit
def write_results(
    values,  # in the type of rows, zero where none is inside
    out,
    codes,
    scales,
    row,
    width,
    at,
    inside,
    scale,
    inverse,
    form: tl.constexpr,
    is_given: tl.constexpr,
):
    """Write one row as it is, as its codes and scale, or both."""
    if form != "codes":
        tl.store(out + row * width + at, values, mask=inside)
    if form != "floats":
        place = codes + row * width + at
        if len(at.shape) == 1:  # a thread has as many numbers side by side as where floats are
            # written, 16 bytes: sums before are then added up in the same order.
            place = tl.max_contiguous(place, 128 // values.dtype.primitive_bitwidth)
        write_codes(
            *(values.to(tl.float32), place, scales + row, inside, scale, inverse, is_given),
        )


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
    place = codes + row * width + at
    write_codes(values, place, scales + row, inside, scale, inverse, is_given)


class Results(NamedTuple):
    """The places that a kernel writes rows to: as floats, as codes with their scales, or both."""

    floats: Tensor | None
    codes: Tensor | None = None  # [rows of whole tiles, numbers], bytes
    scales: Tensor | None = None
    scale: float | None = None  # of all rows, if they have one
    num_rows: int = 0

    @classmethod
    def of(cls, like: Tensor, width: int, kind: str | None, *, has_floats: bool = True) -> Results:
        """Make room for as many rows as another tensor has, with codes if a form asks for them."""
        count = len(like)
        floats = like.new_empty(count, width) if has_floats else None
        if kind is None:
            return cls(floats, num_rows=count)
        missing = -count % tile_rows(like.device)
        # Rows that fill a tile mean nothing, but are numbers.
        make = like.new_zeros if missing else like.new_empty
        codes = make(count + missing, width, dtype=torch.uint8)
        scales = make(count + missing, 1, dtype=torch.float32)
        return cls(floats, codes, scales, scale_in(kind), count)

    def rounded(self, dtype: torch.dtype) -> Rounded:
        """Return the codes as a product reads them."""
        assert self.codes is not None
        assert self.scales is not None
        return Rounded(self.codes.view(eight_bits.CODES), self.scales, self.num_rows, dtype)

    def tensors(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what a kernel writes to; in the place of what it does not, another tensor."""
        floats, codes, scales = (like if each is None else each for each in self[:3])
        return floats, codes, scales

    @property
    def numbers(self) -> tuple[float, float]:
        """The scale that is given, and its inverse."""
        return _given(self.scale)

    @property
    def constants(self) -> dict[str, Any]:
        """The constants that a kernel is compiled for."""
        form = "both" if self.floats is not None else "codes"
        is_given = self.scale is not None
        return {"form": "floats" if self.codes is None else form, "is_given": is_given}


def rounded(home: Accelerator, x: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """Return the codes of rows, and their scales [rows, 1]."""
    rows, width = x.shape
    codes = x.new_empty(rows, width, dtype=torch.uint8)
    scales = x.new_empty(rows, 1, dtype=torch.float32)
    round_into(codes, scales, x, scale, home)
    return codes.view(eight_bits.CODES), scales


def round_into(
    codes: Tensor, scales: Tensor, x: Tensor, scale: float | None, home: Accelerator
) -> None:
    """Write the codes of rows, and their scales."""
    rows, width = x.shape
    home.launch(
        round_rows,
        (rows,),
        (x, codes, scales),
        (x.stride(0), width, *_given(scale)),
        block=triton.next_power_of_2(width),
        is_given=scale is not None,
        num_warps=8 if width > _WIDE else 4,
    )


def _given(scale: float | None) -> tuple[float, float]:
    return (1.0, 1.0) if scale is None else (scale, eight_bits.inverse_of(scale))
