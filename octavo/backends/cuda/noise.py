"""Sampling noise as torch operations: the bits of `octavo/backends/torch/sampling/noise.py`.

Torch multiplies integers modulo 2^64 only if they are signed, and shifts those with their sign; so
bits that a shift has filled with the sign are cleared.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.backends.torch.sampling.noise import FIRST, GOLDEN, SECOND


def signed(value: int) -> int:
    """Return the signed number of 64 bits with these bits."""
    return value - (1 << 64) if value >> 63 else value


def _shifted(x: Tensor, count: int) -> Tensor:
    return (x >> count) & ((1 << (64 - count)) - 1)


def bits(keys: Tensor, num_tokens: int) -> Tensor:
    """Return 64 random bits for each pair of keys [draws, 2] and token: [draws, tokens]."""
    x = torch.arange(num_tokens, device=keys.device) * signed(GOLDEN) + keys[:, :1]
    x = x ^ _shifted(x, 30)
    x = x * signed(FIRST) + keys[:, 1:]
    x = x ^ _shifted(x, 27)
    x = x * signed(SECOND)
    return x ^ _shifted(x, 31)


def gumbel(keys: Tensor, num_tokens: int) -> Tensor:
    """Return the noise of each draw and token: [draws, tokens]."""
    u = (_shifted(bits(keys, num_tokens), 12).double() + 0.5) * 2.0**-52
    return u.log_().neg_().log_().neg_()
