"""With speculation, every request gives the text that it gives without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.runner.speculate.fitted_heads import FITTED
from tests.runner.speculate.mixed_requests import (
    WAYS,
    answers,
    answers_by,
    engine,
    make_calm_model,
    make_cases,
    stats_of,
    summary,
)

NUM_CASES = 40


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_mixed_requests_give_equal_answers(tmp_path: Path, backend: str) -> None:
    """`make test-speculation` compares five thousand."""
    if backend == "torch":
        pytest.importorskip("torch")
    cases = make_cases(NUM_CASES, seed=3)
    directory = make_calm_model(tmp_path)
    with engine(directory, backend, None) as plain:
        right = answers(plain, cases)
        assert stats_of(plain).num_drafts == 0
    num_failed, num_vectors = summary(right)
    assert num_failed > 2
    assert num_vectors > 0
    for way in WAYS:
        found, stats = answers_by(way, directory, backend, cases, right, seed=1)
        assert found == right, way
        assert (
            stats.num_drafts
            > stats.num_accepted_drafts
            > (40 if way.removesuffix(" trees") in (*FITTED, "mtp") else 15)
        ), way
        assert stats.accepted_at[1] > 4, way
        assert stats.num_preemptions > 0 < stats.num_cached_tokens
        assert sum(stats.accepted_at) == stats.num_accepted_drafts
