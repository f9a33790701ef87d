"""The cases in which the core is measured; each case builds worlds and returns its figures.

A case starts a new world for every repeat, and runs some steps before it counts any. Worlds that
are compared take turns, some steps each, so that a disturbance affects all of them.
"""

from __future__ import annotations

import gc
import tracemalloc
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from benchmarks.core.figures import NS_PER_MS, Figure, figure, step_figure
from benchmarks.core.world import WATCH, Sample, World
from octavo.core.config import CoreConfig
from octavo.core.kv.manager import KVManager
from octavo.core.sequence import Line
from octavo.core.sequence import Sequence as CoreSequence
from octavo.core.stats import WaitClock

LINE = Line("", 0, 1.0, WaitClock())
NUM_WARM_STEPS = 20
TURN_STEPS = 10  # steps of a world before the next one's turn
PROMPT_TOKENS = 1000  # of a waiting request
SHORT_PROMPT_TOKENS = 128  # where there are many requests, or many end and begin
LONG_PROMPT_TOKENS = 32_768  # 2,048 blocks
NUM_WAITING = (0, 1_000, 10_000, 50_000)

CONFIG = CoreConfig(
    num_blocks=40_000,
    max_model_len=600_000,  # nearly the whole pool
    max_num_batched_tokens=2048,
    max_num_waiting=1_000_000,
    max_waiting_tokens=1 << 40,
)


@dataclass(frozen=True)
class Effort:
    """The number of repeats and steps of a measurement."""

    repeats: int
    steps: int


def decoding(config: CoreConfig, count: int) -> World:
    """Return a world in which `count` sequences decode; their blocks fill at different steps."""
    world = World(config)
    for index in range(count):
        world.add(world.request(200 + index % 97))
    world.run_until_decoding(count)
    return world


def take_turns(worlds: Sequence[World], num_steps: int) -> list[list[Sample]]:
    """Return the samples of each world; all warm up before any is counted."""
    for world in worlds:
        world.steps(NUM_WARM_STEPS)
    samples: list[list[Sample]] = [[] for _ in worlds]
    for _ in range(0, num_steps, TURN_STEPS):
        for world, each in zip(worlds, samples, strict=True):
            each.extend(world.steps(TURN_STEPS))
    return samples


def compare(
    names: Sequence[str], starts: Sequence[Callable[[], World]], effort: Effort
) -> tuple[list[Figure], list[list[list[Sample]]]]:
    """Return a figure for each of several worlds that take turns, and their samples by repeat."""
    repeats = [
        take_turns([start() for start in starts], effort.steps) for _ in range(effort.repeats)
    ]
    by_world = [list(samples) for samples in zip(*repeats, strict=True)]
    return [step_figure(*each) for each in zip(names, by_world, strict=True)], by_world


# Steady decoding


def decode_steps(effort: Effort) -> list[Figure]:
    """Measure the two sizes with a target, a single sequence, and pipeline depth 2."""

    large = replace(CONFIG, max_num_seqs=1000)

    def with_many_waiting() -> World:
        world = decoding(large, 1000)
        world.add_waiting(10_000, PROMPT_TOKENS)
        return world

    starts: dict[str, Callable[[], World]] = {
        "1,000 running, 10,000 waiting": with_many_waiting,
        "256 running": partial(decoding, CONFIG, 256),
        "1 running": partial(decoding, CONFIG, 1),
        "1,000 running, pipeline depth 2": partial(
            decoding, replace(large, pipeline_depth=2), 1000
        ),
        "256 running, pipeline depth 2": partial(decoding, replace(CONFIG, pipeline_depth=2), 256),
    }
    return compare(list(starts), list(starts.values()), effort)[0]


def cold_steps(effort: Effort) -> list[Figure]:
    """Measure the two sizes with CPU caches that are full of other data before each step.

    This is the case of an engine whose model runs on the same processor.
    """
    other_data = bytearray(64 << 20)

    def cold(world: World) -> Sample:
        other_data[:] = bytes(len(other_data))
        return world.step()

    figures = []
    for count in (1000, 256):
        repeats = []
        for _ in range(effort.repeats):
            world = decoding(replace(CONFIG, max_num_seqs=count), count)
            world.steps(NUM_WARM_STEPS)
            repeats.append([cold(world) for _ in range(effort.steps // 10)])
        figures.append(step_figure(f"{count:,} running, caches cold", repeats))
    return figures


def waiting_for_a_slot(count: int) -> World:
    """Return a world in which all slots are in use."""
    world = decoding(CONFIG, CONFIG.max_num_seqs)
    world.add_waiting(count, SHORT_PROMPT_TOKENS)
    return world


def waiting_for_blocks(count: int) -> World:
    """Return a world with free slots, whose queue's head needs more blocks than are free."""
    world = decoding(replace(CONFIG, max_num_seqs=512), CONFIG.max_num_seqs)
    world.add_waiting(min(count, 1), CONFIG.max_model_len - 100)
    world.add_waiting(max(count - 1, 0), SHORT_PROMPT_TOKENS)
    return world


def waiting_for_an_adapter(count: int) -> World:
    """Return a world with free slots and blocks, but without a free adapter slot."""
    world = World(replace(CONFIG, max_num_seqs=512, max_loras=1))
    for index in range(CONFIG.max_num_seqs):
        world.add(world.request(200 + index % 97, lora="one"))
    world.run_until_decoding(CONFIG.max_num_seqs)
    world.add_waiting(count, SHORT_PROMPT_TOKENS, lora="another")
    return world


def independence(effort: Effort) -> list[Figure]:
    """Measure steps of 256 sequences while more and more wait, for each reason to wait."""
    figures = []
    for reason, begin in (
        ("for a slot", waiting_for_a_slot),
        ("head lacks blocks", waiting_for_blocks),
        ("heads lack an adapter", waiting_for_an_adapter),
    ):
        names = [f"256 running, {count:,} waiting: {reason}" for count in NUM_WAITING]
        starts = [partial(begin, count) for count in NUM_WAITING]
        rows, by_world = compare(names, starts, effort)
        figures.extend(rows)
        ratios = [
            [_median_ns(many) / _median_ns(few)]
            for few, many in zip(by_world[1], by_world[-1], strict=True)
        ]
        figures.append(figure(f"50,000 waiting by 1,000: {reason}", "", ratios))
    return figures


def _median_ns(samples: Sequence[Sample]) -> float:
    return median(sample.total_ns for sample in samples)


# Mixed and changing work


def mixed_steps(effort: Effort) -> list[Figure]:
    """Measure 255 decoding sequences beside prompts of 32k tokens that fill each step."""

    def start() -> World:
        world = decoding(CONFIG, 255)
        for _ in range(
            2 + (NUM_WARM_STEPS + effort.steps) // 18
        ):  # a prompt takes at least 18 steps
            request = world.request(LONG_PROMPT_TOKENS)
            world.add(replace(request, sampling=replace(request.sampling, max_tokens=1)))
        return world

    rows = [take_turns([start()], effort.steps)[0] for _ in range(effort.repeats)]
    return [step_figure("255 running, 32k prompts in chunks", rows)]


def churn_steps(effort: Effort) -> list[Figure]:
    """Measure steps in which 10 of 256 sequences end and 10 of 10,000 are admitted."""

    def start() -> World:
        world = decoding(CONFIG, 256)
        world.add_waiting(10_000, SHORT_PROMPT_TOKENS)
        return world

    def churn(world: World) -> Sample:
        world.num_to_end = 10
        sample = world.step()
        world.add_waiting(10, SHORT_PROMPT_TOKENS)
        return sample

    repeats = []
    for _ in range(effort.repeats):
        world = start()
        for _ in range(NUM_WARM_STEPS):
            churn(world)
        repeats.append([churn(world) for _ in range(effort.steps)])
    return [step_figure("256 running, 10 end and 10 begin", repeats)]


# Single heavy steps


def all_end(effort: Effort) -> list[Figure]:
    """Measure a step in which 1,000 sequences end, without and with another step in flight."""
    figures = []
    for depth in (1, 2):
        config = replace(CONFIG, max_num_seqs=1000, pipeline_depth=depth)
        repeats = []
        for _ in range(effort.repeats):
            world, samples = World(config), []
            for _ in range(5):
                world.add_waiting(1000, 16)
                world.run_until_decoding(1000)
                world.steps(2)
                world.num_to_end = 1000
                samples.append(world.steps(depth)[-1])  # the step whose result ends them
            repeats.append(samples)
        figures.append(step_figure(f"1,000 end in one step, pipeline depth {depth}", repeats))
    return figures


def preemption_storm(effort: Effort) -> list[Figure]:
    """Measure a step in which 1,000 sequences need a block, none is free, and 500 are preempted."""
    figures = []
    for depth in (1, 2):
        config = replace(
            CONFIG,
            num_blocks=1001,
            max_model_len=16_000,
            max_num_seqs=1000,
            max_num_batched_tokens=16_000,
            watermark=0.0,
            pipeline_depth=depth,
        )
        repeats = []
        for _ in range(effort.repeats):
            world = World(config)
            world.add_waiting(1000, 16)
            samples = []
            while not world.scheduler.stats.num_preemptions:
                samples.append(world.step())
            assert world.scheduler.stats.num_preemptions == 500
            repeats.append(samples[-1:])
        figures.append(step_figure(f"500 preempted in one step, pipeline depth {depth}", repeats))
    return figures


def shared_prefix(effort: Effort) -> list[Figure]:
    """Measure 10,000 requests that arrive at once and share 512 of their 1,000 tokens.

    The first one computes the shared prefix, and others follow it. Then they return to the queue,
    and as many start as fit into a step.
    """
    repeats = []
    common = array("i", range(512))
    for _ in range(effort.repeats):
        world = World(CONFIG)
        for _ in range(10_000):
            world.add(world.request(PROMPT_TOKENS, shared=common))
        repeats.append([max(world.steps(10), key=lambda sample: sample.total_ns)])
    return [step_figure("10,000 with one prefix arrive, heaviest step", repeats)]


# Single calls


def match_long_prefix(effort: Effort) -> list[Figure]:
    """Measure a new sequence whose 2,048 full blocks are all in the cache."""
    config = replace(CONFIG, max_num_batched_tokens=2 * LONG_PROMPT_TOKENS)
    world = World(config)
    first = world.request(LONG_PROMPT_TOKENS + 1)
    world.add(first)
    world.run_until_decoding(1)
    kv = world.scheduler.kv
    calls: dict[str, list[list[float]]] = {
        "match 32k cached tokens": [],
        "match 32k cached tokens and adopt them": [],
        "match 32k cached tokens, hashes known": [],
        "release 32k tokens": [],
    }
    for _ in range(effort.repeats):
        rows = []
        for number in range(max(10, effort.steps // 10)):
            sequence = CoreSequence(first, (0.0, 0.0, number), first.max_total, 0.0, LINE)
            rows.append(_match_once(kv, sequence))
        for values, column in zip(calls.values(), zip(*rows, strict=True), strict=True):
            values.append([ns / NS_PER_MS for ns in column])
    return [figure(name, "ms", repeats) for name, repeats in calls.items()]


def _match_once(kv: KVManager, sequence: CoreSequence) -> tuple[int, int, int, int]:
    WATCH.start()
    prefix = kv.match(sequence)
    match_ns = WATCH.stop()
    assert prefix.num_tokens == LONG_PROMPT_TOKENS
    WATCH.start()
    kv.adopt(sequence, prefix, len(sequence.tokens))
    adopt_ns = WATCH.stop()
    WATCH.start()
    kv.match(sequence)
    match_again_ns = WATCH.stop()
    WATCH.start()
    kv.release(sequence)
    return match_ns, match_ns + adopt_ns, match_again_ns, WATCH.stop()


def memory(effort: Effort) -> list[Figure]:
    """Measure the memory of 2,000 waiting requests, the requests themselves included."""
    fresh, matched_kb = [], []
    count = 2000
    for _ in range(min(effort.repeats, 2)):  # the result hardly varies
        world = World(CONFIG)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        world.add_waiting(count, PROMPT_TOKENS)
        added, _ = tracemalloc.get_traced_memory()
        for sequence in world.scheduler.queue:
            world.scheduler.kv.match(sequence)
        matched, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        fresh.append([(added - before) / count / 1000])
        matched_kb.append([(matched - before) / count / 1000])
    return [
        figure("memory of a waiting 1k-token request", "kB", fresh),
        figure("memory of one whose prefix was looked up", "kB", matched_kb),
    ]


def add_and_abort(effort: Effort) -> list[Figure]:
    """Measure adding a request to 10,000 waiting ones, and aborting one from their middle."""
    adds: list[list[float]] = []
    aborts: list[list[float]] = []
    for _ in range(effort.repeats):
        world = World(CONFIG)
        world.add_waiting(10_000, PROMPT_TOKENS)
        adds.append([])
        aborts.append([])
        for number in range(1, effort.steps + 1):
            request = world.request(PROMPT_TOKENS)
            victim = f"request-{number * 7919 % 10_000 + 1}"
            WATCH.start()
            world.scheduler.add(request, world.now)
            adds[-1].append(WATCH.stop() / NS_PER_MS)
            WATCH.start()
            event = world.scheduler.abort(victim, world.now)
            aborts[-1].append(WATCH.stop() / NS_PER_MS)
            assert event is not None
    return [
        figure("add a 1k-token request to 10,000 waiting", "ms", adds),
        figure("abort one of 10,000 waiting", "ms", aborts),
    ]


def full_collection(effort: Effort) -> list[Figure]:
    """Measure a full garbage collection, which happens once in a few hundred steps."""
    repeats = []
    for _ in range(effort.repeats):
        gc.collect()
        world = decoding(replace(CONFIG, max_num_seqs=1000), 1000)
        world.add_waiting(10_000, PROMPT_TOKENS)
        WATCH.start()
        num_unreachable = gc.collect()
        repeats.append([WATCH.stop() / NS_PER_MS])
        assert num_unreachable == 0, "the core made reference cycles"
        del world
    return [figure("full collection, 1,000 run and 10,000 wait", "ms", repeats)]


CASES: tuple[Callable[[Effort], list[Figure]], ...] = (
    decode_steps,
    cold_steps,
    independence,
    match_long_prefix,
    memory,
    mixed_steps,
    churn_steps,
    add_and_abort,
    all_end,
    preemption_storm,
    shared_prefix,
    full_collection,
)
