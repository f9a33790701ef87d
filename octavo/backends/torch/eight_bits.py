"""Numbers of eight bits (E4M3) with scales, as cards multiply and keep them.

The scale of a vector that is rounded while steps run is a power of two, kept as its exponent in a
byte: the least one by which no number is out of range. Every device therefore finds the same codes
and the same values, whatever its divisions do, and floats lose nothing by it but range.
A vector with an infinite number or a NaN has NaN as its scale.
"""

from __future__ import annotations

import torch
from torch import Tensor

CODES = torch.float8_e4m3fn
MOST = 448.0  # the largest number
# The exponent of a float32 in its place, and what carries into it where its mantissa is above that
# of the largest number.
_MANTISSA_BITS, _CARRY = 23, 0x1FFFFF
_MOST_EXPONENT = 8  # of the largest number
_INFINITE, _NAN = 0x7F800000, 0x7FC00000
NO_SCALE = 255  # the exponent of a scale that is NaN


def exponents_of(x: Tensor) -> Tensor:
    """Return the exponents of the scales of vectors [..., numbers], biased by 127: [...], bytes."""
    largest = (x.float().view(torch.int32) & 0x7FFFFFFF).amax(-1)  # a NaN is above all others
    exponents = ((largest + _CARRY) >> _MANTISSA_BITS) - _MOST_EXPONENT
    return exponents.clamp(min=1).masked_fill(largest >= _INFINITE, NO_SCALE).to(torch.uint8)


def scales_of(exponents: Tensor) -> Tensor:
    """Return the scales that have these exponents."""
    wide = exponents.int()
    return (wide << _MANTISSA_BITS).masked_fill(wide == NO_SCALE, _NAN).view(torch.float32)


def codes_of(x: Tensor, exponents: Tensor) -> Tensor:
    """Return the codes of vectors whose scales have these exponents."""
    inverse = ((254 - exponents.int()).clamp(min=1) << _MANTISSA_BITS).view(torch.float32)
    return (x.float() * inverse[..., None]).clamp(-MOST, MOST).to(CODES)


def decoded(codes: Tensor, exponents: Tensor) -> Tensor:
    """Return the values of codes, in float32."""
    return codes.float() * scales_of(exponents)[..., None]


def rounded(x: Tensor, scale: float | None) -> tuple[Tensor, Tensor]:
    """Return the codes of rows, and their scales [rows, 1]: of each row, or the one that is given.

    With a given scale, larger numbers than it reaches become the largest.
    """
    if scale is None:
        exponents = exponents_of(x)
        return codes_of(x, exponents), scales_of(exponents)[:, None]
    # A product with the inverse has the same bits everywhere, as quotients on cards have not.
    codes = (x.float() * inverse_of(scale)).clamp(-MOST, MOST).to(CODES)
    return codes, x.new_full((len(x), 1), scale, dtype=torch.float32)


def inverse_of(scale: float) -> float:
    """Return the number that is multiplied by in place of a division, exact in float32."""
    return float(torch.tensor(1.0) / torch.tensor(scale))


def as_rounded(x: Tensor, scale: float | None = None) -> Tensor:
    """Return the values that rows have once they are rounded, in the type of the rows."""
    codes, scales = rounded(x, scale)
    values = codes.float() * scales
    most = torch.finfo(x.dtype).max  # float16 may lack the number that its largest are rounded to
    return values.clamp(-most, most).to(x.dtype)


def of_groups(codes: Tensor, scales: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """Return the values of codes [..., inputs] whose groups of inputs have scales [..., groups].

    A last group may have fewer inputs than its size.
    """
    values = codes.float()
    if scales.shape[-1] == 1:
        return (values * scales).to(dtype)
    return (values * scales.repeat_interleave(size, -1)[..., : codes.shape[-1]]).to(dtype)
