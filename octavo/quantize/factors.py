"""The choice of factors that move from a site's inputs to its weights, by a sample of the inputs.

AWQ makes weights larger where inputs are large, so that rounding to few bits changes the products
less. SmoothQuant makes large inputs smaller, so that all fit the scale that they share. Both try
several powers of the magnitudes, and the products of the sample decide, rounded as the type has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from msgspec import Struct

from octavo.quantize.packer import Array, Floats

Round = Callable[[Floats], Floats]

_MOST_ROWS = 1024  # of a site's matrices, whose products are compared
_MOST_CODE = np.float32(127)
_LEAST = 1e-5  # of the largest magnitude: inputs that are hardly used get no extreme factors
_LARGEST_FACTOR = 1e4


class Family(Struct, frozen=True):
    """The factors that are tried: powers of the inputs' magnitudes and of the weights'."""

    input_powers: tuple[float, ...]
    has_weights: bool  # the power of the weights' magnitudes is the rest to one, negative
    rounds_inputs: bool  # to int8, as the type does


AWARE = Family((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8), False, False)
SMOOTH = Family((0.3, 0.4, 0.5, 0.6, 0.7, 0.8), True, True)


def choose_factors(
    family: Family, inputs: Floats, weights: Sequence[Floats], rounded: Round
) -> Floats:
    """Return what to divide each input by: ones, if nothing is better than that.

    `weights` are the matrices that read the inputs; `rounded` is what the type makes of rows.
    """
    rows = np.concatenate([_some(each, _MOST_ROWS // len(weights)) for each in weights])
    exact = inputs @ rows.T
    best = np.ones(inputs.shape[1], np.float32)
    least = _error(family, inputs, rows, exact, best, rounded)
    for factors in _candidates(family, inputs, rows):
        error = _error(family, inputs, rows, exact, factors, rounded)
        if error < least:
            best, least = factors, error
    return best


def _some(rows: Floats, most: int) -> Floats:
    """Return at most so many rows, from all places."""
    return rows[:: -(-len(rows) // most)]


def _error(
    family: Family, inputs: Floats, rows: Floats, exact: Floats, factors: Floats, rounded: Round
) -> float:
    """Return the squared error of the products with these factors."""
    read = inputs / factors
    if family.rounds_inputs:
        read = as_int8(read)
    made = read @ rounded(np.ascontiguousarray(rows * factors)).T
    return float(np.square(made - exact).sum(dtype=np.float64))


def as_int8(inputs: Floats) -> Floats:
    """Round each row to int8 with the scale of its largest magnitude."""
    scales = np.abs(inputs).max(1, keepdims=True) / _MOST_CODE
    scales[scales == 0] = 1
    made: Floats = np.rint(inputs / scales) * scales
    return made


def _candidates(family: Family, inputs: Floats, rows: Floats) -> Iterator[Floats]:
    magnitudes = np.abs(inputs)
    found = magnitudes.max(0) if family.rounds_inputs else magnitudes.mean(0)
    read, weighed = _at_least(found), _at_least(np.abs(rows).max(0))
    for power in family.input_powers:
        factors = read**power
        if family.has_weights:
            factors /= weighed ** (1 - power)
        factors /= np.sqrt(factors.max() * factors.min())
        yield np.clip(factors, 1 / _LARGEST_FACTOR, _LARGEST_FACTOR).astype(np.float32)


def _at_least(magnitudes: Array) -> Array:
    """Return magnitudes as float64, none of them zero."""
    wide = magnitudes.astype(np.float64)
    return np.maximum(wide, max(float(wide.max()) * _LEAST, 1e-30))
