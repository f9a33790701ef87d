"""The explanation of a request names its drafts, and what others cost it."""

from __future__ import annotations

import pytest

from octavo.core.stats import PACE, RequestStats
from octavo.observe.explain import Record


def test_an_explanation_counts_drafts_and_the_accepted_ones() -> None:
    stats = RequestStats(0.0, 5, 0.0, num_drafts=12, num_accepted_drafts=9)
    explanation = Record("r", "owner", 0.0, stats=stats).explain(1.0)
    assert explanation["drafted_tokens"] == 12
    assert explanation["accepted_draft_tokens"] == 9


def test_before_the_engine_has_answered_drafts_are_unknown() -> None:
    explanation = Record("r", "owner", 0.0).explain(1.0)
    assert explanation["drafted_tokens"] is explanation["accepted_draft_tokens"] is None


@pytest.mark.parametrize(("count", "says"), [(0, ""), (1, "1 chunk of"), (7, "7 chunks of")])
def test_chunks_that_were_cut_for_others_are_named(count: int, says: str) -> None:
    stats = RequestStats(0.0, 5, 0.0, num_paced_chunks=count)
    explanation = Record("r", "owner", 0.0, stats=stats).explain(1.0)
    assert explanation["paced_chunks"] == count
    assert ("itl_goal" in explanation["cause"]) == bool(count)
    assert says in explanation["cause"]


def test_waiting_for_the_pace_of_others_is_a_cause() -> None:
    stats = RequestStats(0.0, 5, 0.0, wait_seconds={PACE: 3.0})
    assert "itl_goal" in Record("r", "owner", 0.0, stats=stats).explain(4.0)["cause"]
