"""The diagnosis weighs the steps by the time that they took."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.core import stats as why
from octavo.core.snapshot import EngineSnapshot
from octavo.core.stats import StepStats
from octavo.observe.diagnosis import diagnose


def snapshot(*steps: tuple[float, int, str | None], pause: float = 0.0) -> EngineSnapshot:
    """Make a snapshot of steps: the seconds, the prompt tokens of 100, and what held the queue."""
    made, now = [], 0.0
    for number, (seconds, num_prefill, reason) in enumerate(steps):
        num_waiting = 4 if reason else 0
        made.append(StepStats(number, now, 5, 100, num_prefill, 1, 0, 8, num_waiting, 63, reason))
        now += seconds + pause
    return EngineSnapshot(recent=tuple(made), recent_seconds=tuple(step[0] for step in steps))


DECODE, PREFILL = (0.01, 0, None), (1.0, 100, None)


@pytest.mark.parametrize(
    ("steps", "verdict"),
    [
        ([DECODE] * 10, "decode-bound"),
        ([DECODE] * 10 + [PREFILL], "prefill-bound"),
        ([PREFILL] * 3 + [(10.0, 0, None)], "decode-bound"),
        ([(0.01, 0, why.SLOTS)] * 9 + [(1.0, 0, None)], "decode-bound"),
        ([(0.01, 0, None)] * 9 + [(1.0, 0, why.SLOTS)], "queue-bound"),
        ([(1.0, 0, why.BLOCKS), (1.5, 0, why.SLOTS)], "queue-bound"),
        ([(1.0, 0, why.TURN)] * 3, "decode-bound"),
        ([], "idle"),
    ],
)
def test_the_cause_of_most_of_the_time_is_the_bottleneck(
    steps: list[tuple[float, int, str | None]], verdict: str
) -> None:
    assert diagnose([snapshot(*steps)], {})["verdict"] == verdict


def test_an_engine_that_rests_most_of_the_time_is_idle() -> None:
    assert diagnose([snapshot(*[DECODE] * 10, pause=0.1)], {})["verdict"] == "idle"


def test_the_evidence_is_in_shares_of_the_time() -> None:
    given = snapshot((3.0, 0, why.SLOTS), (1.0, 100, None))
    evidence: dict[str, Any] = diagnose([given], {})["evidence"]
    assert evidence["head_of_queue_held_by"] == {"slots": 0.75}
    assert evidence["prefill_share"] == 0.25
    assert evidence["waiting"] == 3.0
    assert (evidence["seconds"], evidence["busy_share"], evidence["steps"]) == (4.0, 1.0, 2)


def test_without_an_engine_there_is_nothing_to_weigh() -> None:
    assert diagnose([EngineSnapshot()], {})["evidence"] == {"steps": 0}
