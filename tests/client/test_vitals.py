"""An engine's deaths, restarts and pauses over all its processes."""

from __future__ import annotations

from octavo.client.vitals import EngineVitals


def test_time_without_an_engine_adds_up_over_failed_starts() -> None:
    vitals = EngineVitals(0.0)
    vitals.note_ready(1.0)
    assert (vitals.num_restarts, vitals.down_seconds(9.0)) == (0, 0.0)
    vitals.note_end(10.0)
    vitals.note_end(12.0)  # it was not ready in between
    assert vitals.down_seconds(13.0) == 3.0
    vitals.note_ready(14.0)
    vitals.note_end(20.0)
    assert vitals.down_seconds(21.5) == 5.5
    assert (vitals.num_deaths, vitals.num_restarts) == (3, 1)


def test_a_step_is_seen_when_the_count_of_the_present_process_grows() -> None:
    vitals = EngineVitals(0.0)
    vitals.note_ready(1.0)
    vitals.note_steps(2.0, 0)
    assert vitals.stepped_at == 1.0
    vitals.note_steps(3.0, 5)
    vitals.note_steps(4.0, 5)  # the report of an idle engine
    assert vitals.stepped_at == 3.0
    vitals.note_end(5.0)
    vitals.note_ready(6.0)
    vitals.note_steps(7.0, 1)
    assert vitals.stepped_at == 7.0
