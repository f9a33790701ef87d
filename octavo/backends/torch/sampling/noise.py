"""Sampling noise: a pure function of (seed, output position, token id).

A draw therefore does not depend on the batch, on order, on restarts or on the other candidate
tokens. The construction, all of it arithmetic modulo 2^64:

    mix(x)   x ^= x >> 30;  x *= 0xBF58476D1CE4E5B9;  x ^= x >> 27;
             x *= 0x94D049BB133111EB;  x ^= x >> 31
    a        mix(mix(seed + G) + position · G)            two keys of 64 bits
    b        mix(a ^ 0x6A09E667F3BCC909)
    h        as mix(a + token · G), with b added between the two products
    u        (h >> 12 + 1/2) / 2^52                       uniform, strictly between 0 and 1
    noise    -log(-log u)                                 a Gumbel variable

where G = 0x9E3779B97F4A7C15, 2^64 over the golden ratio, odd, so that token · G never repeats.
The multipliers and shifts are those known as variant 13 of the 64-bit finalisers, each input bit
of which flips each output bit with probability very near a half. Without the second key, the tokens
of two positions would be two windows of one and the same sequence.

By the Gumbel-max rule, the token with the largest logit + noise is a draw from the softmax of
the logits. h and u are the same to the bit everywhere; the logarithms are numpy's in double
precision, so that two platforms could disagree only where two tokens tie to about 1 in 10^15.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import Doubles

Integers = NDArray[np.int64]
Unsigned = NDArray[np.uint64]

_MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
FIRST = 0xBF58476D1CE4E5B9
SECOND = 0x94D049BB133111EB
_APART = 0x6A09E667F3BCC909  # the root of two: the second key differs from the first

_SHIFT_30, _SHIFT_27, _SHIFT_31, _SHIFT_12 = (np.uint64(shift) for shift in (30, 27, 31, 12))
_TIMES_FIRST, _TIMES_SECOND = np.uint64(FIRST), np.uint64(SECOND)


def keys(seed: int, position: int) -> tuple[int, int]:
    """Return the two keys of one draw."""
    one = _mix(_mix((seed + GOLDEN) & _MASK) + position * GOLDEN & _MASK)
    return one, _mix(one ^ _APART)


def _mix(x: int) -> int:
    x = (x ^ x >> 30) * FIRST & _MASK
    x = (x ^ x >> 27) * SECOND & _MASK
    return x ^ x >> 31


def mixed(seeds: list[int]) -> Unsigned:
    """Return the part of the keys that is the same for all draws of a seed."""
    return np.array([_mix((seed + GOLDEN) & _MASK) for seed in seeds], np.uint64)


def keys_of(mixed_seeds: Unsigned, positions: Unsigned) -> Unsigned:
    """Return what `keys` does, for one draw of each of these seeds: [draws, 2]."""
    found = np.empty((len(positions), 2), np.uint64)
    found[:, 0] = _mix_all(mixed_seeds + positions * np.uint64(GOLDEN))
    found[:, 1] = _mix_all(found[:, 0] ^ np.uint64(_APART))
    return found


def _mix_all(x: Unsigned) -> Unsigned:
    x = (x ^ x >> _SHIFT_30) * _TIMES_FIRST
    x = (x ^ x >> _SHIFT_27) * _TIMES_SECOND
    return x ^ x >> _SHIFT_31


def spread(token_ids: Integers) -> Unsigned:
    """Return token · G, which is the same for all draws: computed once for a vocabulary."""
    return token_ids.astype(np.uint64) * np.uint64(GOLDEN)


def bits(pairs: list[tuple[int, int]], spread_ids: Unsigned) -> Unsigned:
    """Return 64 random bits for each draw and token: [draws, tokens]."""
    one = np.array([pair[0] for pair in pairs], np.uint64)[:, None]
    two = np.array([pair[1] for pair in pairs], np.uint64)[:, None]
    x = spread_ids + one
    shifted = x >> _SHIFT_30
    x ^= shifted
    x *= _TIMES_FIRST
    x += two
    np.right_shift(x, _SHIFT_27, out=shifted)
    x ^= shifted
    x *= _TIMES_SECOND
    np.right_shift(x, _SHIFT_31, out=shifted)
    x ^= shifted
    return x


def gumbel(pairs: list[tuple[int, int]], spread_ids: Unsigned) -> Doubles:
    """Return the noise of each draw and token: [draws, tokens]."""
    u = uniform(bits(pairs, spread_ids))
    np.log(u, out=u)
    np.negative(u, out=u)
    np.log(u, out=u)
    return np.negative(u, out=u)


def uniform(x: Unsigned) -> Doubles:
    """Convert random bits to numbers strictly between 0 and 1, all of them exact."""
    u = (x >> _SHIFT_12).astype(np.float64)
    u += 0.5
    u *= 2.0**-52
    return u
