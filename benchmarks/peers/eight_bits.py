"""Compare W8A8 weights with bf16, and with eight bits of peers: same weights and prompts, in turns.

    make peers                                 install them (once)
    python -m benchmarks.peers.eight_bits      vLLM on the same file, OpenVINO on the same weights
    python -m benchmarks.peers.eight_bits --rounds 5 --cases prefill512,decode1

The model has the shape of a Llama of 1B with random weights; `octavo quantize --to w8a8` makes the
file from it, and OpenVINO's exporter one of its own in int8. Lines have the medians of tokens a
second, and the ratios of each round's figures.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

from benchmarks.peers import rows
from benchmarks.peers.cases import CASES
from benchmarks.peers.engines import WorkerEngine
from benchmarks.peers.found import Places, find
from benchmarks.peers.models import make_random_1b, openvino
from benchmarks.peers.shaped import PEERS, ROOT, ratio
from octavo.observe.machine import num_cores, processor

OURS, FLOAT = "octavo w8a8", "octavo bf16"
VLLM, OPENVINO = "vllm w8a8", "openvino int8"
# What ours is compared with, and how many times its speed ours must be for prompts.
PAIRS = ((FLOAT, 1.6), (VLLM, 1.2), (OPENVINO, 1.2))


def make_models(to: Path) -> tuple[Path, Path]:
    """Write the model in bf16 and in W8A8, if they are not there; return both."""
    plain, eight = to / "random-1b", to / "random-1b-w8a8"
    make_random_1b(plain)
    if not eight.exists():
        command = (sys.executable, "-m", "octavo", "quantize", str(plain), "--to", "w8a8")
        subprocess.run([*command, "-o", str(eight)], check=True)
    return plain, eight


def make_engines(places: Places) -> dict[str, WorkerEngine]:
    """Return the engines by name; they start at their first case."""
    plain, eight = make_models(places.models)
    names = {rows.BF16, rows.VLLM, rows.OPENVINO}
    found = find(places, ["octavo", "vllm", "openvino"], names)
    engines = {each.name: each for each in found if isinstance(each, WorkerEngine)}
    ours = engines[rows.BF16]
    made = [
        replace(ours, name=FLOAT, model=str(plain)),
        replace(ours, name=OURS, model=str(eight), options={**ours.options, "dtype": "auto"}),
    ]
    if rows.VLLM in engines:
        made.append(replace(engines[rows.VLLM], name=VLLM, model=str(eight)))
    if rows.OPENVINO in engines:
        to = plain.with_name(f"{plain.name}-openvino")
        exported = openvino(plain, to, places.openvino, "int8")
        made.append(replace(engines[rows.OPENVINO], name=OPENVINO, model=str(exported)))
    return {each.name: each for each in made}


def main() -> None:
    """Measure in rounds, and print the ratios of each round's figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", default="prefill512,decode1")
    parser.add_argument("--installed", type=Path, default=PEERS)
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "models")
    asked = parser.parse_args()
    log = ROOT / "build" / "eight_bits.log"
    log.parent.mkdir(exist_ok=True)
    places = Places.installed_in(asked.installed.absolute(), asked.models, log, num_cores()[0])
    cases = [CASES[key] for key in asked.cases.split(",")]
    engines = make_engines(places)
    found: dict[tuple[str, str], list[float]] = {}
    try:
        for number, case in product(range(asked.rounds), cases):
            for name in list(engines)[:: (-1) ** number]:
                value = engines[name].measure(case, number)["tok/s"]
                print(number + 1, case.key, name, f"{value:.1f}", file=sys.stderr, flush=True)
                found.setdefault((case.key, name), []).append(value)
    finally:
        for engine in engines.values():
            engine.close()
    print(f"{processor()[0]}, {places.threads} threads, {asked.rounds} rounds")
    for case, (name, must) in product(cases, PAIRS):
        if name in engines:
            ours, beside = found[case.key, OURS], found[case.key, name]
            speeds = f"{OURS} {statistics.median(ours):.1f}, {name} {statistics.median(beside):.1f}"
            bound = f", must {must}" if case.figure == "prefill" else ""
            print(f"{case.name}: {speeds}, {ratio(ours, beside)}{bound}")


if __name__ == "__main__":
    main()
