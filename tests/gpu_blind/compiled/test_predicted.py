"""The predicted step follows the compiled code, and its limits are those of the data sheet."""

from __future__ import annotations

import pytest

from benchmarks.cuda import predicted_step
from benchmarks.cuda.predicted_step import FORMS, H200, attention_code, blocks_at_once, step

pytestmark = pytest.mark.slow
# Of an H200 in ms: 15 GB of weights and 128 KiB of KV a position by 4.3 TB/s.
LIMITS = {1: 3.52, 32: 4.49, 128: 7.49, 256: 12.92}


def test_the_limit_is_the_cards_and_no_prediction_is_below_it() -> None:
    code = attention_code()
    for sequences, limit in LIMITS.items():
        found = step(code, FORMS[0], sequences, H200)
        assert found.limit * 1e3 == pytest.approx(limit, abs=0.01)
        assert found.predicted > found.limit
        assert step(code, FORMS[1], sequences, H200).predicted < found.predicted


def test_a_kernel_with_more_registers_or_memory_runs_fewer_blocks() -> None:
    assert blocks_at_once(96, 38_916, 4, H200) == 5
    assert blocks_at_once(168, 38_916, 4, H200) == 3
    assert blocks_at_once(96, 116_000, 4, H200) == 1


def test_fewer_bytes_on_their_way_make_attention_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    code = attention_code()
    before = step(code, FORMS[0], 128, H200).predicted
    monkeypatch.setattr(predicted_step, "blocks_at_once", lambda *facts: 0.2)
    assert step(code, FORMS[0], 128, H200).predicted > before
