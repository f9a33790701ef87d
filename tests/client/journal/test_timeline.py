"""What several engines report of one request becomes one timeline."""

from __future__ import annotations

from octavo.client.journal.timeline import Timeline
from octavo.core.stats import MAX_CHUNKS, RESTART, SLOTS, PrefillChunk, RequestStats, Restart


def report(begin: float, num_output: int, **more: object) -> RequestStats:
    """Return what an engine reports that got a request at `begin`, and gave a token 3 s later."""
    stats = RequestStats(
        arrival=0.0,
        num_prompt_tokens=8,
        added_at=begin,
        first_planned_at=begin + 1,
        first_token_at=begin + 3,
        num_cached_tokens=4,
        num_output_tokens=num_output,
        num_prefills=1,
        chunks=[PrefillChunk(4, 8, begin + 1, begin + 3)],
        wait_seconds={SLOTS: 1.0},
    )
    for name, value in more.items():
        setattr(stats, name, value)
    return stats


def test_one_engine_reports_the_timeline_itself() -> None:
    timeline = Timeline()
    timeline.submit(1.0, 0, 0)
    stats = report(1.0, 5)
    assert timeline.whole(stats, 5) is stats


def test_the_engines_before_and_the_time_without_one_are_added() -> None:
    timeline = Timeline()
    timeline.submit(10.0, 0, 0)
    timeline.whole(report(10.0, 0, num_drafts=3, num_accepted_drafts=1), 1)
    timeline.lose(20.0, 0.0, 8, 6)
    timeline.lose(21.0, 0.0, 8, 6)  # the next one dies before it has the request
    timeline.submit(24.0, 6, 0)
    first = timeline.whole(report(24.0, 0, num_cached_tokens=2), 7)
    last = report(24.0, 9, finished_at=40.0, num_decode_steps=2, num_cached_tokens=2)
    stats = timeline.whole(last, 9)
    assert first.restarts == stats.restarts == [Restart(20.0, 24.0)]
    assert (stats.added_at, stats.first_planned_at, stats.first_token_at) == (10.0, 11.0, 13.0)
    assert stats.finished_at == 40.0
    assert (stats.num_cached_tokens, stats.num_recached_tokens) == (4, 2)
    assert (stats.num_output_tokens, stats.num_prefills) == (9, 2)
    assert stats.num_decode_steps == 5 + 2, "six tokens of the first, two more of the second"
    assert (stats.num_drafts, stats.num_accepted_drafts) == (3, 1)
    assert [chunk.planned_at for chunk in stats.chunks] == [11.0, 25.0]
    assert stats.wait_seconds == {SLOTS: 2.0, RESTART: 4.0}
    assert last.restarts == [], "what the engine sent is unchanged"


def test_an_engine_that_died_before_the_first_token_leaves_only_its_time() -> None:
    timeline = Timeline()
    timeline.wait(1.0)  # there was no engine when the request came
    timeline.submit(2.0, 0, 0)
    timeline.lose(5.0, 0.5, 8, 0)
    timeline.submit(6.0, 0, 0)
    stats = timeline.whole(report(6.0, 1), 1)
    assert stats.restarts == [Restart(1.0, 2.0), Restart(5.0, 6.0)]
    assert (stats.added_at, stats.first_planned_at, stats.num_cached_tokens) == (2.0, 7.0, 4)
    assert stats.wait_seconds[RESTART] == 2.0


def test_the_engines_that_had_a_request_are_named_in_order() -> None:
    timeline = Timeline()
    for now, engine in enumerate((1, 0, 0, 2)):
        timeline.submit(float(now), 0, engine)
        first = timeline.whole(report(float(now), 0), 1)
        timeline.lose(now + 0.5, 0.0, 8, 0)
    assert first.engines == [1, 0, 2]


def test_the_chunks_of_all_engines_are_bounded() -> None:
    timeline = Timeline()
    timeline.submit(0.0, 0, 0)
    chunks = [PrefillChunk(index, index + 1, 0.0, 1.0) for index in range(MAX_CHUNKS)]
    timeline.whole(report(0.0, 0, chunks=chunks), 1)
    timeline.lose(20.0, 0.0, 8, 1)
    timeline.submit(30.0, 1, 0)
    stats = timeline.whole(report(30.0, 2), 2)
    assert len(stats.chunks) == MAX_CHUNKS
    assert len(chunks) == MAX_CHUNKS
    assert stats.chunks[-1].applied_at == 33.0
