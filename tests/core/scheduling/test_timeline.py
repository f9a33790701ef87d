"""Statistics: where each request's time went, and what each step did."""

from typing import Any

import pytest

from octavo.core import stats
from octavo.core.stats import PrefillChunk, RequestStats
from tests.core.make import Rig, expected_output, tokens


def timeline(rig: Rig, request_id: str) -> RequestStats:
    """Return the statistics in a request's last event."""
    found = rig.end_of(request_id).stats
    assert found is not None
    return found


def test_a_timeline_has_the_time_of_every_transition() -> None:
    rig = Rig(max_num_batched_tokens=4)
    rig.now = 10.0
    rig.add("a", 6, max_tokens=3, arrival=7.5)
    rig.finish()
    known = timeline(rig, "a")
    assert (known.arrival, known.added_at, known.first_planned_at) == (7.5, 10.0, 11.0)
    assert (known.first_token_at, known.finished_at) == (12.0, 14.0)
    assert (known.num_prompt_tokens, known.num_output_tokens) == (6, 3)
    assert known.chunks == [PrefillChunk(0, 4, 11.0, 11.0), PrefillChunk(4, 6, 12.0, 12.0)]


def test_a_chunk_lasts_from_its_plan_to_its_result() -> None:
    rig = Rig(pipeline_depth=2)
    rig.add("a", 6, max_tokens=3)
    rig.finish()
    assert timeline(rig, "a").chunks == [PrefillChunk(0, 6, 1.0, 2.0)]


def test_a_preempted_sequence_lists_its_second_prefill() -> None:
    rig = Rig(num_blocks=8, max_num_seqs=2, prefix_caching=False)
    rig.add("first", tokens(8, 1), max_tokens=9)
    rig.add("second", tokens(8, 2), max_tokens=9)
    rig.finish()
    chunks = timeline(rig, "second").chunks
    assert [(chunk.start, chunk.end) for chunk in chunks[:1]] == [(0, 8)]
    assert len(chunks) == timeline(rig, "second").num_preemptions + 1
    assert timeline(rig, "second").num_lost_tokens > 0
    assert timeline(rig, "second").num_recached_tokens == 0


# reasons for waiting


def test_the_reasons_explain_all_of_the_waiting_time() -> None:
    """Six requests with few slots and blocks and a pause: for each the reasons add up."""
    rig = Rig(num_blocks=9, max_num_seqs=2, max_num_batched_tokens=9, prefix_caching=False)
    for number in range(6):
        rig.add(str(number), tokens(7, number + 1), max_tokens=8)
        rig.now += 0.25
    for step in range(500):
        if not rig.scheduler.sequences:
            break
        if step == 5:
            rig.scheduler.pause(rig.now)
        if step == 8:
            rig.scheduler.resume(rig.now)
        rig.step()
    for number in range(6):
        known = timeline(rig, str(number))
        assert known.first_planned_at is not None
        if known.num_preemptions == 0:
            waited = known.first_planned_at - known.added_at
            assert sum(known.wait_seconds.values()) == pytest.approx(waited)
    held = timeline(rig, "5").wait_seconds
    assert {stats.TURN, stats.PAUSED} < set(held) <= set(stats.REASONS)


@pytest.mark.parametrize(
    ("reason", "settings", "fields"),
    [
        (stats.SLOTS, {"max_num_seqs": 1}, {}),
        (stats.BLOCKS, {"num_blocks": 6}, {}),
        (stats.ADAPTERS, {"max_loras": 1}, {"lora": "y"}),
        (stats.BUDGET, {"max_num_batched_tokens": 1}, {}),
    ],
)
def test_a_waiting_request_records_its_reason(
    reason: str, settings: dict[str, Any], fields: dict[str, Any]
) -> None:
    rig = Rig(**settings)
    rig.add("first", 12, max_tokens=4, lora="x" if fields else None)
    rig.step()
    rig.add("second", tokens(12, 2), max_tokens=4, **fields)
    for _ in range(3):
        rig.step()
        assert rig.scheduler.stats.recent[-1].blocked_by == reason
    rig.abort("second")
    assert timeline(rig, "second").wait_seconds[reason] == 2.0


def test_an_aborted_follower_records_the_time_it_followed() -> None:
    rig = Rig(long_prefill_tokens=4)
    rig.add("first", 30, max_tokens=2)
    rig.add("second", 30, max_tokens=2)
    rig.step()
    rig.step()
    rig.now += 3.0
    assert rig.following == ["second"]
    rig.abort("second")
    held = timeline(rig, "second").wait_seconds
    assert held == {stats.TURN: 1.0, stats.PREFIX: 4.0}


def test_a_clock_that_is_set_back_makes_no_time_negative() -> None:
    rig = Rig(long_prefill_tokens=4)
    rig.now = 100.0
    rig.add("first", 12, max_tokens=2)
    rig.add("second", 12, max_tokens=2)
    rig.step()
    rig.now = 5.0
    rig.finish()
    held = timeline(rig, "second").wait_seconds
    assert min(held.values()) >= 0.0


# steps and totals


def test_a_step_records_its_size_and_the_state_after_it() -> None:
    rig = Rig(max_num_seqs=2)
    rig.add("a", 6, max_tokens=3)
    rig.step()
    for name, family in (("b", 2), ("c", 3)):
        rig.add(name, tokens(5, family), max_tokens=2)
    rig.step()
    assert rig.scheduler.stats.recent[-1][:11] == (1, 2.0, 2, 6, 5, 1, 0, 2, 1, 59, stats.SLOTS)
    assert rig.scheduler.stats.recent[0].blocked_by is None


def test_totals_add_up_over_steps_and_requests() -> None:
    rig = Rig(num_blocks=8, max_num_seqs=2)
    rig.add("first", tokens(8, 1), max_tokens=9)
    rig.add("second", tokens(8, 2), max_tokens=9)
    rig.add("third", tokens(8, 1), max_tokens=9)
    rig.finish()
    totals = rig.scheduler.stats
    each = [timeline(rig, name) for name in ("first", "second", "third")]
    assert totals.num_steps == len(rig.plans)
    assert totals.num_tokens == sum(plan.num_tokens for plan in rig.plans)
    assert totals.num_preemptions == sum(one.num_preemptions for one in each) > 0
    assert totals.num_cached_tokens == sum(
        one.num_cached_tokens + one.num_recached_tokens for one in each
    )
    assert totals.num_finished == {"length": 3}


@pytest.mark.parametrize("depth", [1, 2])
def test_decode_steps_are_counted(depth: int) -> None:
    """The first token comes from the prompt's last chunk, each other one from its own step."""
    rig = Rig(pipeline_depth=depth)
    rig.add("a", 6, max_tokens=9)
    rig.add("one", tokens(5, 2), max_tokens=1)
    rig.finish()
    assert timeline(rig, "a").num_decode_steps == 8
    assert timeline(rig, "one").num_decode_steps == 0


def test_drafts_and_accepted_drafts_are_counted() -> None:
    """Three steps have four drafts each; the last draft is wrong except in the last step."""
    rig = Rig(max_drafts=3, drafter=lambda known: [*expected_output(known, 2), -1])
    rig.add("a", 6, max_tokens=10)
    rig.finish()
    assert [len(event.tokens) for event in rig.events] == [1, 3, 3, 3]
    known, totals = timeline(rig, "a"), rig.scheduler.stats
    assert (known.num_decode_steps, known.num_accepted_drafts) == (3, 6)
    assert (totals.num_drafts, totals.num_accepted_drafts) == (3 + 3 + 2, 6)
    assert (known.num_drafts, totals.num_chunks_with_drafts) == (3 + 3 + 2, 3)
    assert totals.accepted_at == [3, 3]
