"""The bytes and operations that a step is counted with."""

from __future__ import annotations

import pytest

from octavo.backends.native import _native
from octavo.backends.native.work import SequenceSize, Work, work_of
from octavo.program.listing import Attend, Instruction
from tests.backends.native.tiny import make_native
from tests.runner.tiny import FULL


def attention(window: int) -> Instruction:
    attend = Attend(6, 2, 8, 1.0, 0.0, window, None, (0, 0))
    return Instruction("Attention", attend=attend)


@pytest.mark.parametrize(
    ("window", "sequences", "read", "products"),
    [
        (0, [SequenceSize(9, 1)], 10, 10),
        (4, [SequenceSize(9, 1)], 4, 4),
        (0, [SequenceSize(0, 3)], 3, 1 + 2 + 3),
        (4, [SequenceSize(9, 3)], 6, 3 * 4),  # positions 6 to 11
        (0, [SequenceSize(9, 1), SequenceSize(4, 1)], 15, 15),
    ],
)
def test_attention_reads_what_its_rows_see_once(
    window: int, sequences: list[SequenceSize], read: int, products: int
) -> None:
    found = work_of(attention(window), sequences, 1.5, 0)
    assert found == Work(round(2 * read * 2 * 8 * 1.5), 4 * products * 6 * 8)


def test_products_read_all_weights_once_however_many_rows_there_are() -> None:
    backend = make_native(FULL, 8, 16)
    gemms = [i for i in backend.instructions if i.op == "Gemm"]
    stored = sum(i.matrix.num_bytes for i in gemms if i.matrix is not None)
    for rows in (1, 7):
        works = [work_of(i, [SequenceSize(0, rows)], 4, 0) for i in gemms]
        assert sum(work.bytes_read for work in works) == stored
        assert works[0].operations == 2 * rows * 32 * 16
        assert works[-1].operations == 2 * 61 * 16  # the head: one row's logits
    nothing = work_of(gemms[-1], [SequenceSize(0, 7, logits=0)], 4, 0)
    assert nothing == Work(0, 0)


def test_a_backend_measures_the_machines_peak_rates() -> None:
    """The rates are plausible, and every tier can measure them."""
    backend = make_native(FULL, 8, 16)
    assert backend.read_rate(0.0) > 1e6
    peaks = backend.peak_rates(1.0, 0.0)
    assert peaks.read == 1.0
    assert peaks.int8 > 1e8
    team = _native.Team(1, False)
    for tier in _native.tiers():
        assert _native.operation_rate(tier, team, _native.Products.Float, 0.0) > 1e7
    with pytest.raises(ValueError, match="no matrix to read"):
        _native.read_rate(_native.tiers()[0], team, [], 0.0)
