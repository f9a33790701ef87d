"""The simulator's worlds with the real runner: each request answers as if it ran alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from octavo.backends.step import Draws
from octavo.backends.torch import states
from octavo.backends.torch.attention import Buffers
from octavo.backends.torch.sampling import noise
from octavo.backends.torch.sampling.pooling import PooledSum
from octavo.backends.torch.sampling.slot import Slot
from octavo.backends.torch.sampling.step_sampler import StepSampler
from octavo.core.plan import StepPlan
from octavo.core.request import Request
from octavo.models.llama import Llama
from octavo.runner.batch import Step
from octavo.runner.slots import SlotState
from octavo.runner.transfers import Ended, Transfers
from tests.runner.host_store import with_store
from tests.runner.real_world import RealSimulation
from tests.runner.tiny import Family, Mixed, convolving, latent, make_backend, make_groups
from tests.sim.kv.memory import SimulationError
from tests.sim.world import draw_world

NUM_WORLDS = 240
WORLDS_A_TEST = 20


def run_world(seed: int, *makes: Any, store: str | None = None) -> RealSimulation:
    """Run a world over a real model, with a store of KV if one is named; an error names it."""
    world = draw_world(seed, is_plain=True)
    simulation = RealSimulation(world if store is None else with_store(world, store), *makes)
    try:
        simulation.run()
    except Exception as error:
        raise AssertionError(f"world {seed}, at tick {simulation.num_ticks}") from error
    return simulation


@pytest.mark.slow
@pytest.mark.sample(3)
@pytest.mark.parametrize("first", range(0, NUM_WORLDS, WORLDS_A_TEST))
def test_worlds_hold(first: int) -> None:
    """Aborts, preemptions, resets, crashes, NaN, forks and drafts change no request's output."""
    for seed in range(first, first + WORLDS_A_TEST):
        run_world(seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "family"),
    [("good", Llama), ("bad", Llama), ("bad", Mixed), ("good", latent), ("bad", convolving)],
)
def test_worlds_hold_while_kv_is_saved_and_loaded(kind: str, family: Family) -> None:
    """Blocks that come from a store, in this engine or a later one, change no request's output.

    The store may be slow, and may lose blocks or return them damaged.
    """
    makes = partial(make_backend, family=family), partial(make_groups, family=family)
    seen = dict.fromkeys(("saved", "loaded", "failed", "restarted"), 0)
    for seed in range(12):
        simulation = run_world(seed, *makes, store=kind)
        seen["saved"] += simulation.host_store.num_saved
        seen["loaded"] += simulation.host_store.num_loaded
        seen["failed"] += simulation.host_store.num_failed
        seen["restarted"] += sum(j.restarted for j in simulation.journals.values())
    assert seen["failed"] > 5 or kind == "good", seen
    assert min(seen["saved"], seen["loaded"], seen["restarted"]) > 10, seen


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("first", range(0, 80, WORLDS_A_TEST))
def test_worlds_hold_with_layers_of_different_shapes(first: int) -> None:
    """Blocks of two sizes share one pool of bytes, and no sequence reads another's."""
    makes = partial(make_backend, family=Mixed), partial(make_groups, family=Mixed)
    shared = 0
    for seed in range(first, first + WORLDS_A_TEST):
        simulation = run_world(seed, *makes)
        shared += max(simulation.config.blocks_per_page) > 1
    assert shared == WORLDS_A_TEST


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("first", range(0, 60, WORLDS_A_TEST))
def test_worlds_hold_with_latent_rows(first: int) -> None:
    """Chunks, prefixes, preemptions and drafts change no token where a position keeps one row."""
    makes = partial(make_backend, family=latent), partial(make_groups, family=latent)
    for seed in range(first, first + WORLDS_A_TEST):
        run_world(seed, *makes)


@pytest.mark.slow
@pytest.mark.sample(1)
@pytest.mark.parametrize("first", range(0, 80, WORLDS_A_TEST))
def test_worlds_hold_with_states(first: int) -> None:
    """A sequence continues from a state of its own, of its parent, or of a checkpoint."""
    makes = partial(make_backend, family=convolving), partial(make_groups, family=convolving)
    num_cached = 0
    for seed in range(first, first + WORLDS_A_TEST):
        simulation = run_world(seed, *makes)
        num_cached += simulation.engine.scheduler.stats.num_cached_tokens
    assert num_cached > 0


@pytest.mark.slow
def test_the_worlds_cover_every_case() -> None:
    """Preemptions, cache hits, drafts and every way to end occur in the first 80 worlds."""
    seen = dict.fromkeys(("preempted", "cached", "restarted", "drafts", "verified", "pooled"), 0)
    ends: dict[str | None, int] = {}
    for seed in range(80):
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


def loads_left_out(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a load is reported, and the block is not written."""
    begin = Transfers.begin

    def wrong(transfers: Transfers, plan: StepPlan, step: Step) -> tuple[Step, Ended]:
        step, ended = begin(transfers, plan, step)
        return step._replace(batch=step.batch._replace(loads=())), ended

    patch.setattr(Transfers, "begin", wrong)


def loads_confused(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: blocks that are loaded in one step get each other's content."""
    begin = Transfers.begin

    def wrong(transfers: Transfers, plan: StepPlan, step: Step) -> tuple[Step, Ended]:
        step, ended = begin(transfers, plan, step)
        contents = [content for *_, content in reversed(step.batch.loads)]
        places = [place[:2] for place in step.batch.loads]
        loads = tuple((*at, content) for at, content in zip(places, contents, strict=True))
        return step._replace(batch=step.batch._replace(loads=loads)), ended

    patch.setattr(Transfers, "begin", wrong)


def misplaced_blocks(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: new blocks are written one place too far."""
    grow = SlotState.grow

    def wrong(state: SlotState, slot: int, blocks: Any) -> None:
        state.num_blocks[slot] += 1
        grow(state, slot, blocks)
        state.num_blocks[slot] -= 1

    patch.setattr(SlotState, "grow", wrong)


def noise_from_the_opening(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: output positions are counted from the opening of the slot."""

    def wrong(slot: Slot) -> tuple[int, int]:
        return noise.keys(slot.sampling.seed, len(slot.tokens) - len(slot.sampling.tokens))

    patch.setattr(Slot, "keys", wrong)


def leftover_rules(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: sampling rules stay in a slot after its sequence has left."""
    change = StepSampler.change
    kept: dict[tuple[int, int], Any] = {}

    def wrong(sampler: StepSampler, draws: Draws) -> None:
        for number in draws.freed:
            kept[id(sampler), number] = sampler.slots[number].rules
        change(sampler, draws)
        for number, _ in draws.opened:
            if kept.get((id(sampler), number)):
                sampler.slots[number].rules = kept[id(sampler), number]

    patch.setattr(StepSampler, "change", wrong)


def rejected_drafts_kept(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: rejected drafts stay in the text."""
    draw = StepSampler._draw

    def wrong(sampler: StepSampler, draws: Draws, *others: Any) -> tuple[tuple[int, ...], ...]:
        tokens = draw(sampler, draws, *others)
        if draws.num_drafts is None:
            return tokens
        pairs = zip(tokens, (draws.num_drafts + 1).tolist(), strict=True)
        return tuple([(*drawn, *[0] * count)[:count] for drawn, count in pairs])

    patch.setattr(StepSampler, "_draw", wrong)


def mean_without_cached_tokens(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: the mean leaves out the tokens that come from the cache."""
    patch.setattr(Request, "reads_cache", property(lambda request: True))


def mean_continued_after_preemption(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: after a preemption the prompt starts over, but the sum for its mean does not."""
    change = StepSampler.change
    kept: dict[bytes, PooledSum] = {}

    def wrong(sampler: StepSampler, draws: Draws) -> None:
        for number in draws.freed:
            slot = sampler.slots[number]
            kept[slot.sampling.tokens.tobytes()] = slot.pooled
        change(sampler, draws)
        for number, sampling in draws.opened:
            if pooled := kept.get(sampling.tokens.tobytes()):
                sampler.slots[number].pooled = pooled

    patch.setattr(StepSampler, "change", wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    "plant",
    [
        loads_left_out,
        loads_confused,
        misplaced_blocks,
        noise_from_the_opening,
        leftover_rules,
        rejected_drafts_kept,
        mean_without_cached_tokens,
        mean_continued_after_preemption,
    ],
)
def test_planted_bugs_are_caught(plant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the first 40 worlds fails with any of these bugs in the runner or the reference."""
    plant(monkeypatch)
    failures = 0
    for seed in range(40):
        world = draw_world(seed, is_plain=True)
        if plant in (loads_left_out, loads_confused):
            world = with_store(world, "good")
        try:
            RealSimulation(replace(world, slowness=0.0)).run()
        except Exception:
            failures += 1
            break
    assert failures


def states_of_the_chunks_end(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: all blocks of a chunk get the state after its last position."""
    convolve = states.convolve

    def wrong(x: Any, layer: Any, batch: Any) -> Any:
        out = convolve(x, layer, batch)
        group, index = layer.place
        cells, size = batch.buffers.layers[group][index].keys, batch.buffers.block_size
        host = batch.host
        for owner, (start, stop) in enumerate(pairwise(host.row_starts)):
            table, last = host.tables[group][owner], int(host.positions[stop - 1]) // size
            for entry in range(int(host.positions[start]) // size, last):
                if table[entry]:
                    cells[int(table[entry])] = cells[int(table[last])]
        return out

    patch.setattr(states, "convolve", wrong)


def copies_in_the_first_group(patch: pytest.MonkeyPatch) -> None:
    """Plant a bug: a fork's partial block is copied as if all blocks were of one size."""
    copy = Buffers.copy

    def wrong(buffers: Buffers, source: int, destination: int, group: int) -> None:
        if max(source, destination) < len(buffers.blocks[0]):
            copy(buffers, source, destination, 0)

    patch.setattr(Buffers, "copy", wrong)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "family"),
    [(states_of_the_chunks_end, convolving), (copies_in_the_first_group, Mixed)],
)
def test_planted_bugs_of_other_kinds_are_caught(
    plant: Any, family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the first 40 worlds fails with any of these bugs in the backend."""
    plant(monkeypatch)
    makes = partial(make_backend, family=family), partial(make_groups, family=family)
    failures = 0
    for seed in range(40):
        try:
            RealSimulation(replace(draw_world(seed, is_plain=True), slowness=0.0), *makes).run()
        except SimulationError:
            failures += 1
            break
    assert failures
