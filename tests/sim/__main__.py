"""The simulator's command line: `python -m tests.sim --seeds 1000`, and how to replay a failure."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from dataclasses import fields

from octavo.core.config import CoreConfig
from tests.sim.planted import run_planted
from tests.sim.shrink import failure_of, shrink
from tests.sim.simulation import Simulation
from tests.sim.world import World, draw_world


def main() -> int:
    """Run worlds; 0 if all of them hold."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--trace", action="store_true", help="print what happens in each world")
    parser.add_argument("--planted", action="store_true", help="plant bugs; each must be caught")
    parser.add_argument("--no-shrink", action="store_true", help="only name the failing seed")
    parser.add_argument("--only", default="", help="with --planted: bugs whose name contains this")
    arguments = parser.parse_args()
    if arguments.planted:
        return run_planted(arguments.only, arguments.workers)
    if arguments.trace:
        return _trace(range(arguments.first, arguments.first + arguments.seeds))
    return _search(arguments.first, arguments.seeds, arguments.workers, not arguments.no_shrink)


def run_seed(seed: int) -> tuple[int, int, str | None]:
    """One world: the seed, its ticks, and the failure if it fails."""
    simulation = Simulation(draw_world(seed))
    try:
        simulation.run()
    except Exception as error:
        return seed, simulation.num_ticks, f"{type(error).__name__}: {error}"
    return seed, simulation.num_ticks, None


def _search(first: int, count: int, workers: int, shrinks: bool) -> int:
    began = time.perf_counter()
    num_worlds = num_ticks = 0
    seeds = range(first, first + count)
    with multiprocessing.Pool(workers) as pool:
        for seed, ticks, failure in pool.imap_unordered(run_seed, seeds, chunksize=20):
            num_worlds += 1
            num_ticks += ticks
            if failure is not None:
                pool.terminate()
                _explain(seed, failure, shrinks)
                return 1
    seconds = time.perf_counter() - began
    print(
        f"{num_worlds} worlds, {num_ticks} ticks, {num_ticks / seconds:.0f} ticks/s "
        f"({seconds:.1f} s, {workers} processes): all hold"
    )
    return 0


def _explain(seed: int, failure: str, shrinks: bool) -> None:
    print(f"seed {seed}: {failure}")
    print(f"replay: python -m tests.sim --seeds 1 --from {seed} --trace")
    if not shrinks:
        return
    small = shrink(draw_world(seed))
    print(f"shrunk to {len(small.events)} events ({failure_of(small)}):")
    print(_describe(small))


def _describe(world: World) -> str:
    plain = CoreConfig(num_blocks=2, max_model_len=2)
    changed = [
        f"{f.name}={getattr(world.config, f.name)!r}"
        for f in fields(CoreConfig)
        if getattr(world.config, f.name) != getattr(plain, f.name)
    ]
    lines = [f"  {tick:4} {event}" for tick, event in world.events]
    return "\n".join([f"  CoreConfig({', '.join(changed)}), slowness={world.slowness}", *lines])


def _trace(seeds: range) -> int:
    for seed in seeds:
        world = draw_world(seed)
        simulation = Simulation(world, record=True)
        failure = None
        try:
            simulation.run()
        except Exception as error:
            failure = error
        print(f"seed {seed}\n{world.config}")
        print("\n".join(simulation.trace or ()))
        if failure is not None:
            raise failure
    return 0


if __name__ == "__main__":
    sys.exit(main())
