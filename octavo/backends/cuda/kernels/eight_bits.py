"""Eight-bit floats (E4M3) within kernels: their codes and scales by the bits of longer floats.

Cards before sm_89 have no instructions for them, and others round and convert as is done here.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.torch.eight_bits import CODES

# A code's bits lie in a float16 so that its exponent is less by this.
SHIFT = tl.constexpr(8)


@triton.jit
def exponent_of(values):
    """Return the exponent, biased by 127, of the scale of a vector of float32; 255 for a NaN.

    A vector may be a tile.
    """
    sizes = values.to(tl.int32, bitcast=True) & 0x7FFFFFFF
    if len(values.shape) > 1:
        sizes = tl.max(sizes, 1)
    largest = tl.max(sizes, 0)  # of integers, of which a NaN is the largest
    exponent = tl.maximum(((largest + 0x1FFFFF) >> 23) - 8, 1)
    return tl.where(largest >= 0x7F800000, 255, exponent)


@triton.jit
def scale_of(exponent, shift: tl.constexpr):
    """Return the scale that has an exponent, times two to the power of the shift."""
    bits = (exponent + shift) << 23
    return tl.where(exponent == 255, 0x7FC00000, bits).to(tl.float32, bitcast=True)


@triton.jit
def inverse_of(exponent):
    """Return the inverse of the scale that has an exponent."""
    return (tl.maximum(254 - exponent, 1) << 23).to(tl.float32, bitcast=True)


@triton.jit
def codes_of(values):
    """Return the codes of float32 that are nearest; numbers beyond the largest become the largest.

    A code keeps three bits of the mantissa, and below 2**-6 whole multiples of 2**-9.
    """
    bits = values.to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    is_nan = size > 0x7F800000
    size = tl.minimum(size, 0x43E00000)  # 448
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    # The sum with 2**23 is rounded to a whole number, which its lowest bits are.
    whole = size.to(tl.float32, bitcast=True) * 512.0 + 8388608.0
    code = tl.where(size < 0x3C800000, whole.to(tl.int32, bitcast=True) & 15, normal)
    code = tl.where(is_nan, 0x7F, code)
    return (code | ((bits >> 24) & 0x80)).to(tl.uint8)


@triton.jit
def floats_of(codes, kind: tl.constexpr):
    """Return the values of codes in a type; of bytes, they lack a factor of 2**SHIFT."""
    if codes.dtype == tl.uint8:
        wide = codes.to(tl.uint16)
        bits = ((wide & 0x80) << 8) | ((wide & 0x7F) << 7)
        values = bits.to(tl.float16, bitcast=True).to(kind)
    else:
        values = codes.to(kind)
    return values


def as_card_reads(codes: Tensor, home: Accelerator) -> Tensor:
    """Return bytes as numbers of the card, if it has any of eight bits."""
    is_byte = codes.dtype == torch.uint8
    return codes.view(CODES) if is_byte and home.multiplies_eight_bits else codes
