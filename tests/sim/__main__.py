"""The simulator's command line: `python -m tests.sim --seeds 1000`, and how to replay a failure."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial

from tests.sim.drafts.worlds import draw_predictions, draw_trees
from tests.sim.planted import NUM_SEEDS, run_planted
from tests.sim.programs.worlds import draw_blocks, draw_programs
from tests.sim.report import state_of, world_as_python
from tests.sim.shrink import shrink
from tests.sim.simulation import Simulation
from tests.sim.world import World, draw_world

INTERRUPTED = 130  # the exit status that a shell gives to a program ended by Ctrl-C
DRAWS: dict[str, Callable[[int], World]] = {
    "programs": draw_programs,
    "blocks": draw_blocks,
    "predictions": draw_predictions,
    "trees": draw_trees,
}
GROUPS = "groups"  # worlds of another kind, which cannot be shrunk or traced (tests/sim/groups)
LAST_LINES = 20  # of a shrunk world's trace, which is rarely longer


def main() -> int:
    """Run the command line; return 0 if all worlds hold."""
    options = _arguments()
    # SIGTERM must clean up as Ctrl-C does: it ends processes and removes directories.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if options.planted:
            return run_planted(options.only, options.workers)
        if options.trace:
            return _trace(range(options.first, options.first + options.seeds), options.kind)
        seeds = range(options.first, options.first + options.seeds)
        return _search(seeds, options.kind, options.workers, not options.no_shrink)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _arguments() -> argparse.Namespace:
    """Parse the command line; options that would have no effect are errors."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=_at_least(1), help="how many worlds (default 1000)")
    parser.add_argument("--from", type=_at_least(0), dest="first", help="the first seed")
    parser.add_argument(
        "--workers", type=_at_least(1), default=os.cpu_count() or 1, help="processes"
    )
    parser.add_argument("--trace", action="store_true", help="print what happens in each world")
    parser.add_argument("--planted", action="store_true", help="plant bugs; each must be caught")
    parser.add_argument("--no-shrink", action="store_true", help="only name the failing seed")
    parser.add_argument("--only", default="", help="with --planted: bugs whose name contains this")
    parser.add_argument(
        "--kind", choices=(*DRAWS, GROUPS), help="worlds of another kind, by their own seeds"
    )
    options = parser.parse_args()
    if options.only and not options.planted:
        parser.error("--only chooses among the planted bugs: add --planted, or omit --only")
    flags = (options.trace or None, options.no_shrink or None)
    chosen = (options.seeds, options.first, options.kind, *flags)
    if options.planted and any(option is not None for option in chosen):
        parser.error(
            f"--planted runs seeds 0 to {NUM_SEEDS - 1} against each bug: "
            "omit --seeds, --from, --kind, --trace and --no-shrink"
        )
    if options.kind == GROUPS and options.trace:
        parser.error("worlds of groups have no trace: omit --trace, or --kind groups")
    options.seeds = 1000 if options.seeds is None else options.seeds
    options.first = options.first or 0
    return options


def _at_least(least: int) -> Callable[[str], int]:
    """Return a type of argument: a whole number with a lower bound."""

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return number

    return parse


def _draw(seed: int, kind: str | None) -> World:
    return draw_world(seed) if kind is None else DRAWS[kind](seed)


def run_seed(seed: int, kind: str | None = None) -> tuple[int, int, str | None]:
    """Run one world; return the seed, its ticks, and its failure if it has one."""
    if kind == GROUPS:
        from tests.sim.groups.command import run_seed as run_group  # here: it needs a compiler

        return run_group(seed)
    simulation = Simulation(_draw(seed, kind))
    failure = _run(simulation)
    return seed, simulation.num_ticks, None if failure is None else _named(failure)


def _run(simulation: Simulation) -> Exception | None:
    try:
        simulation.run()
    except Exception as error:  # any exception is a failure
        return error
    return None


def _named(failure: Exception) -> str:
    return f"{type(failure).__name__}: {failure}"


def _leave_signals_to_the_parent() -> None:
    """Ignore Ctrl-C in a worker: the parent ends it by SIGTERM, and prints one message."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _search(seeds: range, kind: str | None, workers: int, shrinks: bool) -> int:
    began = time.perf_counter()
    num_worlds = num_ticks = 0
    run = partial(run_seed, kind=kind)
    with multiprocessing.Pool(workers, _leave_signals_to_the_parent) as pool:
        try:
            for seed, ticks, failure in pool.imap_unordered(run, seeds, chunksize=20):
                num_worlds += 1
                num_ticks += ticks
                if failure is not None:
                    pool.terminate()
                    explain(seed, failure, shrinks, kind)
                    return 1
        except KeyboardInterrupt:
            print(
                f"{num_worlds} of {len(seeds)} worlds held before this was",
                end=" ",
                file=sys.stderr,
            )
            raise
    seconds = time.perf_counter() - began
    print(
        f"{num_worlds} worlds, {num_ticks} ticks, {num_ticks / seconds:.0f} ticks/s "
        f"({seconds:.1f} s, {workers} processes): all hold"
    )
    return 0


def explain(seed: int, failure: str, shrinks: bool, kind: str | None = None) -> None:
    """Print a failing seed, how to replay it, and its shrunk world with the end of its trace."""
    print(f"seed {seed}: {failure}")
    program = os.path.relpath(sys.executable)
    options = "" if kind is None else f" --kind {kind}"
    options += f" --seeds 1 --from {seed}" + ("" if kind == GROUPS else " --trace")
    print(f"replay: {program} -m tests.sim{options}", flush=True)
    if not shrinks or kind == GROUPS:
        return
    small = shrink(_draw(seed, kind))
    simulation = Simulation(small, record=True)
    failed = _run(simulation)
    print(f"shrunk to {len(small.events)} events:\n{world_as_python(small)}")
    print(f"its last {LAST_LINES} lines:" if len(simulation.trace or ()) > LAST_LINES else "")
    print("\n".join((simulation.trace or [])[-LAST_LINES:]))
    if failed is not None:
        _show_end(simulation, failed)


def _show_end(simulation: Simulation, failure: Exception) -> None:
    print(f"{simulation.num_ticks:4} FAILED: {_named(failure)}\n{state_of(simulation)}")


def _trace(seeds: range, kind: str | None) -> int:
    """Print the traces up to the first failure, then its traceback and the state."""
    for seed in seeds:
        world = _draw(seed, kind)
        simulation = Simulation(world, record=True)
        failure = _run(simulation)
        print(f"seed {seed}\n{world.config}")
        print("\n".join(simulation.trace or ()))
        if failure is not None:
            print("".join(traceback.format_exception(failure)), end="")
            _show_end(simulation, failure)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
