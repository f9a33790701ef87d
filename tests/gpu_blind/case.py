"""One use of a kernel with which it is examined, and what such uses share."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.backends.cuda.kernels import rounding
from octavo.backends.torch import eight_bits
from tests.gpu_blind.homes import Home


class Case(NamedTuple):
    """One use of a kernel: what it computes on a home, what that should be, how near it must be."""

    name: str
    compute: Callable[[Home], Tensor]
    expected: Tensor
    tolerance: float  # of the largest number expected


def random_rows(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rounded_case(
    name: str,
    into: Callable[[Home, rounding.Results], None],
    floats: Tensor,
    scale: float | None,
    has_floats: bool,
) -> Case:
    """Return a case of rows that a kernel leaves as codes.

    What differs from the codes of a launch that rounds the kernel's own floats is NaN.
    """
    width, kind = floats.shape[1], "fp8" if scale is None else f"fp8 {scale.hex()}"

    def compute(home: Home) -> Tensor:
        apart = rounding.Results.of(floats, width, None)
        into(home, apart)
        assert apart.floats is not None
        codes, scales = rounding.rounded(home, apart.floats, scale)
        found = rounding.Results.of(floats, width, kind, has_floats=has_floats)
        into(home, found)
        joined = found.rounded(floats.dtype)
        count = joined.num_rows
        is_same = joined.codes[:count].view(torch.uint8) == codes.view(torch.uint8)
        is_same &= joined.scales[:count] == scales
        if found.floats is not None:
            is_same &= found.floats == apart.floats
        return (codes.float() * scales).masked_fill(~is_same, torch.nan)

    # A bit of a float decides between two codes, of which 448 and 416 are furthest apart.
    codes, scales = eight_bits.rounded(floats, scale)
    return Case(name, compute, codes.float() * scales, 0.08)
