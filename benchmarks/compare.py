"""Compare Octavo with its peers: same weights, same prompts, interleaved, in one run.

    make peers                                            install them (once, half an hour)
    python benchmarks/compare.py                          everything, five rounds: an hour
    python benchmarks/compare.py --cases decode1,http8 --peers octavo,llama --rounds 7
    python benchmarks/compare.py --quick                  a few tokens of each: does it all start?
    python benchmarks/compare.py --write-docs build/compare.json [more runs]

Each round measures every case in every engine in turn, so that a drifting machine affects all of
them. The results are the ratios of a round; the table has their median and spread. A peer that is
not installed is left out and named. docs/performance.md says how to read the table.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that the program can be called by its path

from benchmarks.peers import rows  # noqa: E402
from benchmarks.peers.cases import CASES, Case  # noqa: E402
from benchmarks.peers.engines import Engine, Metrics  # noqa: E402
from benchmarks.peers.found import KINDS, TIERS, Places, find  # noqa: E402
from benchmarks.peers.report import Results, tables, write_docs  # noqa: E402
from octavo.observe.machine import memory, num_cores, processor  # noqa: E402

PEERS = ROOT / "build" / "peers"
MOST_FAILURES = 2  # an engine that fails again is left out
QUICK = {"requests": 4, "prompt_tokens": 64, "output_tokens": 8, "shared_tokens": 32, "streams": 4}


def main() -> None:
    """Measure and print, or write earlier measurements into the docs."""
    asked = arguments()
    if asked.write_docs:
        results, *more = [Results.read(path) for path in asked.write_docs]
        for each in more:
            results.add(each)
        if results.about["quick"]:
            raise SystemExit("figures of --quick are worth nothing: measure without it first")
        page = ROOT / "docs" / "performance.md"
        print(f"{page} and {write_docs(results, page, ROOT / 'benchmarks' / 'results')}")
        return
    cases = [CASES[key] for key in asked.cases]
    if asked.quick:
        cases = [quick(case) for case in cases]
    names = set().union(*(rows.engines_of(case.key) for case in cases))
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    engines = find(places(asked), asked.peers, names)
    results = Results(about(asked))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # runs `finally`
    try:
        for index in range(asked.rounds):
            measure(engines, cases, index, results, asked.out)
    finally:
        for engine in engines:
            engine.close()
        print(tables(results))


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--cases", type=listed(list(CASES)), default=list(CASES), help=",".join(CASES)
    )
    parser.add_argument(
        "--peers",
        type=listed([*KINDS, TIERS]),
        default=list(KINDS),
        help=f"{','.join(KINDS)}, or {TIERS} (ours, each with one tier for everything)",
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a few tokens, to see it all start")
    parser.add_argument("--threads", type=int, default=num_cores()[0])
    parser.add_argument("--llama", type=Path, default=PEERS / "llama.cpp")
    parser.add_argument("--ik", type=Path, default=PEERS / "ik_llama.cpp")
    for kind in KINDS[3:]:
        python = PEERS / kind / "bin" / "python"
        parser.add_argument(f"--{kind}", type=Path, default=python, help="its Python")
    parser.add_argument("--preload", default="", help="libraries for vLLM, if not tcmalloc, iomp5")
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "models")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "compare.json")
    parser.add_argument("--write-docs", type=Path, nargs="+", metavar="JSON")
    return parser.parse_args()


def listed(known: list[str]) -> type:
    """Return a parser of lists with commas, which keeps the order of `known`."""

    def read(text: str) -> list[str]:
        wanted = text.split(",")
        for word in wanted:
            if word not in known:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {','.join(known)}")
        return [word for word in known if word in wanted]

    return read  # type: ignore[return-value]


def places(asked: argparse.Namespace) -> Places:
    """Return the places of the peers."""
    paths = {kind: getattr(asked, kind).absolute() for kind in KINDS[1:]}
    log = asked.out.absolute().with_suffix(".log")
    models = asked.models.absolute()
    return Places(**paths, models=models, log=log, threads=asked.threads, preload=asked.preload)


def quick(case: Case) -> Case:
    """Return a much smaller variant of the case."""
    smaller = {name: min(getattr(case, name), most) for name, most in QUICK.items()}
    return replace(case, **smaller)


def measure(
    engines: list[Engine], cases: list[Case], index: int, results: Results, out: Path
) -> None:
    """Run one round; an engine that fails too often is left out from then on."""
    for case in cases:
        wanted = rows.engines_of(case.key)
        here = [engine for engine in engines if engine.name in wanted]
        turn = index % max(1, len(here))  # each engine is first in some round
        for engine in here[turn:] + here[:turn]:
            began = time.monotonic()
            try:
                metrics = engine.measure(case, index)
            except Exception as error:  # whatever it is, it must not cost the others' hour
                fail(engine, engines, results, f"{type(error).__name__}: {error}")
                continue
            results.note(case.key, engine.name, index, metrics)
            results.about["versions"][engine.name] = engine.version
            report(index, case, engine, metrics, time.monotonic() - began)
        results.write(out)
    results.about["runs"] = index + 1
    results.write(out)


def fail(engine: Engine, engines: list[Engine], results: Results, why: str) -> None:
    """Report the failure and end the engine; its next case starts it again."""
    print(f"{engine.name} failed: {why}", file=sys.stderr)
    engine.close()
    failures: list[str] = results.about["failures"]
    failures.append(f"{engine.name}: {why}")
    if sum(each.startswith(f"{engine.name}:") for each in failures) > MOST_FAILURES:
        print(f"{engine.name} is left out from here on", file=sys.stderr)
        engines.remove(engine)


def report(index: int, case: Case, engine: Engine, metrics: Metrics, seconds: float) -> None:
    """Print a line of progress."""
    name, value = next(iter(metrics.items()))
    line = f"{index + 1}  {case.key:12} {engine.name:26} {value:9.5g} {name:8} ({seconds:.0f} s)"
    print(line, file=sys.stderr, flush=True)


def about(asked: argparse.Namespace) -> dict[str, object]:
    """Describe the machine and the versions of the figures."""
    name, instruction_sets = processor()
    git = ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "machine": {
            "processor": name or platform.processor(),
            "instruction_sets": instruction_sets,
            "cores": os.cpu_count(),
            "threads": asked.threads,
            "memory_gib": round(memory().total / 2**30),
            "kernel": platform.release(),
            "python": platform.python_version(),
        },
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit,
        "quick": asked.quick,
        "runs": 0,
        "versions": {},
        "failures": [],
    }


if __name__ == "__main__":
    main()
