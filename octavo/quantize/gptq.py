"""Rounding that corrects itself (GPTQ): each input's errors are made good by the inputs after it.

The error that counts is that of the products with the inputs of a text, whose sums of products are
the Hessian. Inputs are rounded one after the other, those with the largest sums first, while there
are many left that can make an error good. Scales are chosen before, with the sums as weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.quantize.integers import Integers
from octavo.quantize.packer import Array, Floats
from octavo.quantize.scales import positive

_BLOCK = 128  # inputs whose corrections of later ones are added at once
_DAMPING = 0.01  # of the mean of the diagonal, so that the inverse exists and is not extreme


def corrected_codes(
    values: Floats, sums: Floats, packer: Integers, scale_type: str
) -> tuple[Array, Floats]:
    """Return signed codes [outputs, inputs] and the scales, as they are stored."""
    diagonal = np.diag(sums).astype(np.float64)
    mean = float(diagonal.mean())
    if mean <= 0:  # the text has never reached this matrix
        mean, diagonal = 1.0, np.ones_like(diagonal)
    importance = (diagonal + _DAMPING * mean).astype(np.float32)
    scales = packer.scales(values, scale_type, importance)
    order = np.argsort(-diagonal, kind="stable")
    upper = _inverse_factor(sums, order, _DAMPING * mean)
    size = values.shape[1] // scales.shape[1]
    by_input = np.ascontiguousarray(positive(scales).T)[order // size]
    left = np.ascontiguousarray(values.T)[order]
    codes = np.empty(left.shape, np.int8)
    for start in range(0, len(left), _BLOCK):
        block = slice(start, min(start + _BLOCK, len(left)))
        errors = np.empty((block.stop - start, left.shape[1]), np.float32)
        for place in range(start, block.stop):
            own, scale = left[place], by_input[place]
            found = packer.nearest(own / scale)
            codes[place] = found
            error = (own - found * scale) / upper[place, place]
            errors[place - start] = error
            after = slice(place + 1, block.stop)
            left[after] -= upper[place, after, None] * error
        left[block.stop :] -= upper[block, block.stop :].T @ errors
    in_place = np.empty_like(codes)
    in_place[order] = codes
    return np.ascontiguousarray(in_place.T), scales


def _inverse_factor(sums: Floats, order: NDArray[np.intp], damping: float) -> Floats:
    """Return the upper factor U of the inverse of the damped sums, UᵀU, in another order."""
    hessian = sums[np.ix_(order, order)].astype(np.float64)
    hessian[np.diag_indices_from(hessian)] += damping
    inverse = np.linalg.inv(hessian)
    factor: Floats = np.linalg.cholesky((inverse + inverse.T) / 2).T.astype(np.float32)
    return factor
