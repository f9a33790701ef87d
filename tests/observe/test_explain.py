"""The explanation of a request names its drafts."""

from __future__ import annotations

from octavo.core.stats import RequestStats
from octavo.observe.explain import Record


def test_an_explanation_counts_drafts_and_the_accepted_ones() -> None:
    stats = RequestStats(0.0, 5, 0.0, num_drafts=12, num_accepted_drafts=9)
    explanation = Record("r", "owner", 0.0, stats=stats).explain(1.0)
    assert explanation["drafted_tokens"] == 12
    assert explanation["accepted_draft_tokens"] == 9


def test_before_the_engine_has_answered_drafts_are_unknown() -> None:
    explanation = Record("r", "owner", 0.0).explain(1.0)
    assert explanation["drafted_tokens"] is explanation["accepted_draft_tokens"] is None
