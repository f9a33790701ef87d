"""The simulator's worlds with the real runner: each request answers as if it ran alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from octavo.core.plan import NewSlot
from octavo.core.request import Request
from octavo.runner.sampler import Sampler
from octavo.runner.slots import SlotState
from tests.runner.real_world import RealSimulation
from tests.sim.world import draw_world

NUM_WORLDS = 240
WORLDS_A_TEST = 20


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, NUM_WORLDS, WORLDS_A_TEST))
def test_worlds_hold(first: int) -> None:
    """Aborts, preemptions, resets, crashes, NaN, forks and drafts change no request's output."""
    for seed in range(first, first + WORLDS_A_TEST):
        simulation = RealSimulation(draw_world(seed, is_plain=True))
        try:
            simulation.run()
        except Exception as error:
            raise AssertionError(f"world {seed}, at tick {simulation.num_ticks}") from error


@pytest.mark.slow
def test_the_worlds_cover_every_case() -> None:
    """Preemptions, cache hits, drafts and every way to end occur in the first 60 worlds."""
    seen = dict.fromkeys(("preempted", "cached", "restarted", "drafts", "verified", "pooled"), 0)
    ends: dict[str | None, int] = {}
    for seed in range(60):
        simulation = RealSimulation(draw_world(seed, is_plain=True)).run()
        assert isinstance(simulation, RealSimulation)
        stats = simulation.engine.scheduler.stats
        seen["preempted"] += stats.num_preemptions
        seen["cached"] += stats.num_cached_tokens
        seen["drafts"] += stats.num_accepted_drafts
        seen["restarted"] += sum(j.restarted for j in simulation.journals.values())
        seen["verified"] += simulation.num_verified
        seen["pooled"] += len(simulation.pooled)
        for journal in simulation.journals.values():
            ends[journal.reason] = ends.get(journal.reason, 0) + 1
    assert min(seen.values()) > 20, seen
    assert all(ends.get(reason, 0) > 3 for reason in ("stop", "length", "abort", "error")), ends


def misplaced_blocks(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: new blocks are written one place too far."""
    grow = SlotState.grow

    def wrong(state: SlotState, slot: int, blocks: Any) -> None:
        state.num_blocks[slot] += 1
        grow(state, slot, blocks)
        state.num_blocks[slot] -= 1

    patch.setattr(SlotState, "grow", wrong)


def noise_from_the_slot(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a request's noise depends on its slot."""

    def wrong(sampler: Sampler, slot: int) -> tuple[int, int]:
        return slot, slot * 31

    patch.setattr(Sampler, "_keys", wrong)


def leftover_rules(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: sampling rules stay in a slot after its sequence has left."""
    free = SlotState.free

    def wrong(state: SlotState, slot: int) -> None:
        rules = state.rules.get(slot)
        free(state, slot)
        if rules is not None:
            state.rules[slot] = rules

    patch.setattr(SlotState, "free", wrong)


def rejected_drafts_kept(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: rejected drafts stay in the text."""
    append = SlotState.append

    def wrong(state: SlotState, slots: np.ndarray, tokens: np.ndarray) -> None:
        written = state.tokens[slots, state.num_known[slots]]
        append(state, slots, np.where(written > 0, written, tokens))

    patch.setattr(SlotState, "append", wrong)


def mean_without_cached_tokens(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the mean leaves out the tokens that come from the cache."""
    patch.setattr(Request, "reads_cache", property(lambda request: True))


def mean_continued_after_preemption(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: after a preemption the prompt starts over, but the sum for its mean does not."""
    free, open_slot = SlotState.free, SlotState.open
    kept: dict[str | None, Any] = {}

    def freeing(state: SlotState, slot: int) -> None:
        kept[state.request_ids[slot]] = state.pools.get(slot)
        free(state, slot)

    def opening(state: SlotState, new: NewSlot) -> None:
        open_slot(state, new)
        if slot_pool := kept.get(new.request_id):
            state.pools[new.slot] = slot_pool

    patch.setattr(SlotState, "free", freeing)
    patch.setattr(SlotState, "open", opening)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        misplaced_blocks,
        noise_from_the_slot,
        leftover_rules,
        rejected_drafts_kept,
        mean_without_cached_tokens,
        mean_continued_after_preemption,
    ],
)
def test_planted_bugs_are_caught(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the first 20 worlds fails with any of these bugs in the runner."""
    plant(monkeypatch)
    failures = 0
    for seed in range(20):
        world = draw_world(seed, is_plain=True)
        try:
            RealSimulation(replace(world, slowness=0.0)).run()
        except Exception:
            failures += 1
            break
    assert failures
