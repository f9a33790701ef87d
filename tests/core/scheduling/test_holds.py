"""Requests that wait for something outside the schedule: a grammar, an adapter."""

from __future__ import annotations

import math

import pytest

from octavo.core.check import check_integrity
from octavo.core.request import Ready
from octavo.core.stats import ADAPTER, GRAMMAR
from tests.core.make import Rig


def test_a_held_request_starts_when_everything_is_ready() -> None:
    rig = Rig()
    rig.add("held", 5, max_tokens=1, holds=(GRAMMAR, ADAPTER))
    assert rig.plan() is None
    rig.scheduler.ready(Ready("held", ADAPTER), rig.now)
    assert rig.plan() is None
    rig.scheduler.ready(Ready("held", GRAMMAR), rig.now)
    rig.finish()
    assert rig.ends() == {"held": "length"}
    stats = rig.end_of("held").stats
    assert stats is not None
    assert stats.wait_seconds[GRAMMAR] == 2.0


def test_a_held_request_delays_no_other() -> None:
    rig = Rig()
    rig.add("held", 5, max_tokens=1, holds=(GRAMMAR,), arrival=-1.0)
    rig.add("other", 5, max_tokens=1)
    rig.step()
    assert rig.ends() == {"other": "length"}


@pytest.mark.parametrize(("is_impossible", "reason"), [(False, "error"), (True, "impossible")])
def test_what_cannot_be_loaded_fails_its_request_alone(is_impossible: bool, reason: str) -> None:
    rig = Rig()
    rig.add("held", 5, holds=(GRAMMAR,))
    event = rig.scheduler.ready(Ready("held", GRAMMAR, "it is too large", is_impossible), rig.now)
    assert event is not None
    assert (event.finish_reason, event.message) == (reason, "it is too large")
    assert not rig.scheduler.sequences


def test_a_hold_has_a_deadline() -> None:
    rig = Rig(hold_seconds=5.0)
    rig.add("held", 5, holds=(GRAMMAR,))
    assert rig.scheduler.expire_holds(4.0) == []
    (event,) = rig.scheduler.expire_holds(6.0)
    assert event.finish_reason == "error"
    assert event.message is not None
    assert "the grammar" in event.message
    assert "5.0 s" in event.message


@pytest.mark.parametrize("reasons", [(GRAMMAR, ADAPTER), (ADAPTER, GRAMMAR)])
def test_what_has_a_bound_of_its_own_is_waited_for_as_long_as_it_takes(
    reasons: tuple[str, str],
) -> None:
    rig = Rig(hold_seconds=5.0, untimed_holds=(ADAPTER,))
    rig.add("both", 5, holds=reasons)
    rig.add("ready", 5, holds=reasons)
    rig.add("alone", 5, holds=(ADAPTER,))
    rig.scheduler.ready(Ready("ready", GRAMMAR), 1.0)
    (event,) = rig.scheduler.expire_holds(6.0)
    assert event.request_id == "both"
    assert "the grammar" in str(event.message)
    check_integrity(rig.scheduler)
    assert rig.scheduler.seconds_to_deadline(7.0) == math.inf
    assert rig.scheduler.expire_holds(1e9) == []
    assert list(rig.scheduler.queue.held) == ["ready", "alone"]


def test_a_clock_that_is_set_back_does_not_prolong_a_hold() -> None:
    rig = Rig(hold_seconds=5.0)
    rig.now = 1000.0
    rig.add("held", 5, holds=(GRAMMAR,))
    assert rig.scheduler.expire_holds(0.0) == []
    assert len(rig.scheduler.expire_holds(6.0)) == 1


def test_news_about_other_requests_or_reasons_is_no_error() -> None:
    rig = Rig()
    rig.add("held", 5, holds=(GRAMMAR,))
    assert rig.scheduler.ready(Ready("unknown", GRAMMAR), 0.0) is None
    assert rig.scheduler.ready(Ready("held", ADAPTER, "wrong"), 0.0) is None
    assert list(rig.scheduler.queue.held) == ["held"]


def test_a_held_request_can_be_aborted() -> None:
    rig = Rig()
    rig.add("held", 5, holds=(GRAMMAR,))
    event = rig.abort("held")
    assert event is not None
    assert event.finish_reason == "abort"


def test_an_unknown_reason_is_refused() -> None:
    event = Rig().add("held", 5, holds=("weather",))
    assert event is not None
    assert "'weather' is none" in str(event.message)
