"""Suspicion, isolated runs and the failure of a request that crashes engines."""

from __future__ import annotations

from array import array

from octavo.client.journal.journal import Entry
from octavo.client.journal.quarantine import Quarantine
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams


def entry(name: str) -> Entry:
    return Entry(Request(name, array("i", [1]), SamplingParams(), 0.0))


def test_two_crashes_without_a_token_isolate_a_request_and_a_third_fails_it() -> None:
    quarantine, bad, other = Quarantine(), entry("bad"), entry("other")
    assert quarantine.suspect([bad, other], was_killed=False) is None
    assert not quarantine.is_active
    other.emitted.append(5)
    assert quarantine.suspect([bad, other], was_killed=False) is None
    assert quarantine.isolate() is bad  # the other one had progressed
    assert quarantine.is_active
    assert quarantine.suspect([bad], was_killed=False) is bad
    assert not quarantine.is_active


def test_a_token_clears_a_request_completely() -> None:
    quarantine, one = Quarantine(), entry("one")
    for _ in range(2):
        quarantine.suspect([one], was_killed=False)
    assert quarantine.isolate() is one
    assert quarantine.clear(one)
    assert one.crash_points == 0
    assert quarantine.isolate() is None


def test_kills_from_outside_count_half() -> None:
    quarantine, one = Quarantine(), entry("one")
    for _ in range(3):
        assert quarantine.suspect([one], was_killed=True) is None
    assert not quarantine.is_active
    for _ in range(2):
        assert quarantine.suspect([one], was_killed=True) is None
        assert quarantine.isolate() is one
    assert quarantine.suspect([one], was_killed=True) is one


def test_a_request_that_was_not_in_the_last_step_of_its_isolated_run_is_isolated_again() -> None:
    quarantine, one = Quarantine(), entry("one")
    for _ in range(2):
        quarantine.suspect([one], was_killed=False)
    assert quarantine.isolate() is one
    assert quarantine.suspect([], was_killed=False) is None
    assert quarantine.isolate() is one
    assert quarantine.forget(one)
