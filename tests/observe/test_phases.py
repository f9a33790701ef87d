"""The phases of a request follow each other without an overlap, over all its engines."""

from __future__ import annotations

from itertools import pairwise

from octavo.core.stats import RESTART, SLOTS, PrefillChunk, RequestStats, Restart
from octavo.observe.explain import Phase, Record, phases


def kinds(found: list[Phase]) -> list[tuple[str, float, float]]:
    """Return each phase's kind, begin and end."""
    for before, after in pairwise(found):
        assert before.end <= after.begin, "they overlap"
    return [(phase.kind, phase.begin, phase.end) for phase in found]


def test_a_request_in_one_engine() -> None:
    chunks = [PrefillChunk(0, 4, 2.0, 3.0), PrefillChunk(4, 8, 3.0, 5.0)]
    stats = RequestStats(0.0, 8, 1.0, 2.0, 5.0, 9.0, chunks=chunks)
    found = phases(stats, 100.0)
    assert kinds(found) == [("queue", 1, 2), ("prefill", 2, 5), ("decode", 5, 9)]
    assert found[1].chunks == chunks


def test_a_request_that_has_no_token_yet() -> None:
    assert kinds(phases(RequestStats(0.0, 8, 1.0), 4.0)) == [("queue", 1, 4)]
    stats = RequestStats(0.0, 8, 1.0, 2.0, chunks=[PrefillChunk(0, 4, 2.0, 3.0)])
    assert kinds(phases(stats, 4.0)) == [("queue", 1, 2), ("prefill", 2, 3)]


def test_a_preempted_request_computes_its_tokens_again() -> None:
    chunks = [PrefillChunk(0, 8, 2.0, 3.0), PrefillChunk(0, 10, 6.0, 7.0)]
    stats = RequestStats(0.0, 8, 1.0, 2.0, 3.0, 9.0, chunks=chunks)
    assert kinds(phases(stats, 100.0))[2:] == [
        ("decode", 3, 6),
        ("preempted", 6, 7),
        ("decode", 7, 9),
    ]


def test_a_request_whose_engines_died() -> None:
    """The first died before a token, the second while it decoded."""
    stats = RequestStats(
        0.0,
        8,
        1.0,
        21.0,
        23.0,
        60.0,
        num_decode_steps=11,
        chunks=[PrefillChunk(0, 8, 21.0, 23.0), PrefillChunk(0, 12, 42.0, 45.0)],
        wait_seconds={SLOTS: 2.0, RESTART: 20.0},
        restarts=[Restart(10.0, 20.0), Restart(30.0, 40.0)],
    )
    assert kinds(phases(stats, 100.0)) == [
        ("lost", 1, 10),
        ("restart", 10, 20),
        ("queue", 20, 21),
        ("prefill", 21, 23),
        ("decode", 23, 30),
        ("restart", 30, 40),
        ("queue", 40, 42),
        ("recomputed", 42, 45),
        ("decode", 45, 60),
    ]
    record = Record("r", "", 0.0, stats=stats, ended_at=60.0)
    explanation = record.explain(100.0)
    timeline = explanation["timeline"]
    assert sum(part["took_ms"] for part in timeline) == 59_000
    assert [part.get("steps") for part in timeline if part["what"] == "decode"] == [None, 11]
    assert timeline[2]["reasons_ms"] == {"slots": 2000, "restart": 20_000}
    assert explanation["engine_restart_ms"] == 20_000
    assert "generating tokens" in explanation["cause"], "22 s, and 20 s for the restarts"


def test_a_request_that_came_when_there_was_no_engine() -> None:
    chunks = [PrefillChunk(0, 8, 6.0, 7.0)]
    stats = RequestStats(0.0, 8, 5.0, 6.0, 7.0, 8.0, chunks=chunks, restarts=[Restart(1.0, 4.0)])
    assert kinds(phases(stats, 100.0)) == [
        ("restart", 1, 4),
        ("queue", 5, 6),
        ("prefill", 6, 7),
        ("decode", 7, 8),
    ]
