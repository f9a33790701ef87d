"""Snapshots of an engine's statistics."""

from typing import Any

from octavo.core.engine import EngineCore
from octavo.core.request import Pause
from octavo.core.snapshot import (
    MAX_STEPS_SENT,
    EngineLoad,
    EngineSnapshot,
    take_load,
    take_snapshot,
    together,
)
from tests.core.make import KEY, Wire, Worker, config, request, tokens


def engine() -> EngineCore:
    """Return an engine with two slots and 63 blocks of 4 tokens."""
    settings = config(max_num_seqs=2)
    return EngineCore(settings, Wire(Worker(settings)), lambda: 0.0, KEY)


def test_a_new_engine_has_empty_totals() -> None:
    assert take_snapshot(engine(), 5.0) == EngineSnapshot(
        taken_at=5.0, load=EngineLoad(num_free_blocks=63), num_blocks=64
    )


def test_a_snapshot_shows_load_totals_and_steps() -> None:
    core = engine()
    for name, family in (("first", 1), ("second", 2), ("third", 3)):
        core.on_event(request(name, tokens(6, family), max_tokens=10))
    core.on_event(request("empty", 0))
    core.step()
    core.step()
    core.on_event(Pause())
    snapshot = take_snapshot(core, 7.0)
    assert snapshot.load == take_load(core) == EngineLoad(2, 1, 0, 63 - 2 * 2)
    assert (snapshot.num_blocks, snapshot.is_paused) == (64, True)
    assert (snapshot.num_steps, snapshot.num_tokens, snapshot.num_prefill_tokens) == (2, 14, 12)
    assert snapshot.num_finished == {"refused": 1}
    assert [(step.step, step.num_tokens, step.blocked_by) for step in snapshot.recent] == [
        (0, 12, "slots"),
        (1, 2, "slots"),
    ]


def test_a_follower_counts_as_waiting() -> None:
    core = engine()
    for name in ("first", "second"):
        core.on_event(request(name, tokens(9), max_tokens=2))
    core.step(wait=False)
    assert core.scheduler.queue.held
    snapshot = take_snapshot(core, 0.0)
    assert snapshot.load[:3] == (1, 1, 1)


def test_only_the_most_recent_steps_are_sent() -> None:
    core = engine()
    for index in range(2):
        core.on_event(request(f"{index}", tokens(4), max_tokens=50))
        while core.has_work:
            core.step()
    snapshot = take_snapshot(core, 0.0)
    most = snapshot.num_steps
    assert most > 100 > MAX_STEPS_SENT
    assert [step.step for step in snapshot.recent] == [*range(most - MAX_STEPS_SENT, most)]


def test_a_snapshot_says_how_long_each_step_took() -> None:
    """A step lasts from its plan, or the end of the one before it, to its result."""
    now = 0.0
    settings = config(max_num_seqs=2, pipeline_depth=2)
    core = EngineCore(settings, Wire(Worker(settings)), lambda: now, KEY)
    core.on_event(request("r", tokens(6), max_tokens=5))
    core.step(wait=False)  # plans step 0 at 0
    now = 1.0
    core.step(wait=False)  # plans step 1 at 1
    now = 4.0
    core.step()  # step 0 ends at 4
    now = 9.0
    assert take_snapshot(core, now).recent_seconds == (4.0, 5.0)


def test_a_snapshot_does_not_change_with_its_engine() -> None:
    core = engine()
    before = take_snapshot(core, 0.0)
    core.on_event(request("empty", 0))
    assert before.num_finished == {}


def test_totals_continue_after_a_restart_and_the_load_does_not() -> None:
    """`after` adds totals and finish reasons; everything else is the new engine's."""
    totals: dict[str, Any] = {
        "num_steps": 1,
        "num_tokens": 2,
        "num_prefill_tokens": 3,
        "num_cached_tokens": 4,
        "num_preemptions": 5,
        "num_drafts": 6,
        "num_chunks_with_drafts": 12,
        "num_accepted_drafts": 7,
        "num_paced": 13,
        "paced_predicted_seconds": 0.25,
        "paced_seconds": 0.5,
        "num_deferred_tokens": 14,
    }
    load: dict[str, Any] = {"load": EngineLoad(8, 9, 1, 10), "num_blocks": 11}
    old = EngineSnapshot(
        1.0,
        **totals,
        **load,
        num_finished={"stop": 1, "abort": 2},
        accepted_at=(5, 2),
        steps_by_size=(3, 0, 7),
    )
    new = EngineSnapshot(
        2.0,
        **totals,
        load=EngineLoad(1),
        num_finished={"stop": 3, "error": 4},
        accepted_at=(4, 2, 1),
        steps_by_size=(1, 1),
    )
    both = new.after(old)
    assert {name: getattr(both, name) for name in totals} == {
        name: 2 * count for name, count in totals.items()
    }
    assert both.num_finished == {"stop": 4, "abort": 2, "error": 4}
    assert both.accepted_at == old.after(new).accepted_at == (9, 4, 1)
    assert both.steps_by_size == (4, 1, 7)
    assert (both.taken_at, both.load, both.num_blocks) == (2.0, EngineLoad(1), 0)
    assert old.num_finished == {"stop": 1, "abort": 2}, "the old snapshot is unchanged"


def test_the_snapshot_of_several_engines_has_their_sums_and_the_steps_of_the_busiest() -> None:
    quiet = EngineSnapshot(
        taken_at=1.0, load=EngineLoad(1, 2, 3, 60), num_blocks=64, num_steps=5, is_paused=True
    )
    busy = EngineSnapshot(
        taken_at=2.0,
        load=EngineLoad(4, 0, 0, 20),
        num_blocks=64,
        num_steps=7,
        recent_seconds=(0.5,),
    )
    for snapshots in ((quiet, busy), (busy, quiet)):
        whole = together(snapshots, is_paused=False)
        assert whole.load == EngineLoad(5, 2, 3, 80)
        assert (whole.num_blocks, whole.num_steps, whole.is_paused) == (127, 12, False)
        assert whole.recent_seconds == (0.5,)
    assert together([quiet], is_paused=True) == quiet
    assert quiet.with_waiting(9).load == EngineLoad(1, 9, 3, 60)
