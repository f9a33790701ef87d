"""With speculation, every request gives the text that it gives without."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.api.tiny import make_model
from tests.runner.speculate.mixed_requests import (
    answers,
    engines,
    make_cases,
    stats_of,
    summary,
)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", "torch"])
def test_mixed_requests_give_equal_answers(tmp_path: Path, backend: str) -> None:
    """`python -m tests.runner.speculate.mixed_requests` compares a thousand."""
    if backend == "torch":
        pytest.importorskip("torch")
    cases = make_cases(60, seed=1)
    with engines(make_model(tmp_path), backend) as (plain, speculating):
        found = answers(speculating, cases)
        assert found == answers(plain, cases)
        num_failed, num_vectors = summary(found)
        assert num_failed > 9
        assert num_vectors > 0
        stats = stats_of(speculating)
        assert stats.num_drafts > stats.num_accepted_drafts > 20
        assert stats.num_preemptions > 0 < stats.num_cached_tokens
        assert sum(stats.accepted_at) == stats.num_accepted_drafts
        assert stats_of(plain).num_drafts == 0
