"""Prefetch distances: they change no bit, and may lead beyond the end of a matrix."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.native.kernels.coded_rows import FORMATS as CODED
from tests.backends.native.kernels.coded_rows import coded_matrix
from tests.backends.native.kernels.gemm_cases import TIERS, bits, multiply
from tests.backends.native.kernels.test_gemm_float import FORMATS, matrix_of, numbers
from tests.backends.native.kernels.test_gemm_quantized import ALL, matrix_in

DISTANCES = (0, 64, 16384, 1 << 30)


@pytest.mark.matrix
@pytest.mark.parametrize("format_name", [*FORMATS, *ALL, *CODED])
@pytest.mark.parametrize("tier", TIERS)
def test_bits_do_not_depend_on_the_distance(tier: str, format_name: str) -> None:
    """Kernels with and without prefetching add up in the same order, for any number of rows."""
    if format_name in FORMATS:
        matrix = matrix_of(format_name, numbers(1, 70, 192))
    elif format_name in CODED:
        matrix = coded_matrix(format_name, 70)
    else:
        matrix = matrix_in(format_name, 70)
    for rows in (1, 2, 4, 5, 8, 13, 100):
        x = numbers(rows, rows, matrix.inputs)
        expected = bits(multiply(tier, matrix, x))
        for ahead in DISTANCES:
            np.testing.assert_array_equal(bits(multiply(tier, matrix, x, ahead=ahead)), expected)
