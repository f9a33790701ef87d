"""Compare Octavo with its peers: same weights, same prompts, interleaved, in one run.

    python benchmarks/compare.py --llama build/peers/llama.cpp --vllm build/peers/vllm/bin/python \\
        --transformers build/peers/transformers/bin/python
    python benchmarks/compare.py --cases "decode, 1 stream" --runs 7

Each round measures every case in every engine, one after the other, so that a machine that drifts
drifts for all. What counts are the ratios of a round; the table has their median and spread.
`make peers` installs the peers. docs/performance.md says how to read the table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that the program can be called by its path

from benchmarks.peers import models  # noqa: E402
from benchmarks.peers.cases import CASES, Case  # noqa: E402
from benchmarks.peers.engines import (  # noqa: E402
    Engine,
    EngineError,
    LlamaEngine,
    WorkerEngine,
    octavo,
)

# Twice two threads on two cores tell nothing: all engines get the same number.
OURS = {"max_model_len": 2304, "max_num_seqs": 64}


@dataclass(frozen=True, slots=True)
class Figure:
    """One engine's rates in one case, a round each."""

    case: str
    engine: str
    rates: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.rates)


def main() -> None:
    """Measure and print."""
    asked = arguments()
    log = asked.out.with_suffix(".log")
    engines = [engine for engine in find(asked, log) if wanted(engine.name, asked.engines)]
    cases = [CASES[name] for name in asked.cases] if asked.cases else list(CASES.values())
    for figures in measure(engines, cases, asked.runs):
        told = {"machine": machine(asked.threads), "figures": [vars_of(f) for f in figures]}
        asked.out.write_text(json.dumps(told, indent=1) + "\n")
    print(table(figures))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", choices=("smollm2", "llama-1b"), default="smollm2")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cases", nargs="*", choices=sorted(CASES))
    parser.add_argument("--engines", nargs="*", help="only those whose names begin with these")
    parser.add_argument("--llama", type=Path, help="the directory of llama.cpp's programs")
    parser.add_argument("--vllm", type=Path, help="the Python in which vLLM is installed")
    parser.add_argument("--zentorch", type=Path, help="the same, with zentorch beside it")
    parser.add_argument("--transformers", type=Path, help="a Python that has transformers")
    parser.add_argument("--preload", default="", help="libraries for vLLM: tcmalloc, iomp5")
    parser.add_argument("--models", type=Path, default=ROOT / "build" / "models")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "compare.json")
    return parser.parse_args()


def find(asked: argparse.Namespace, log: Path) -> Iterable[Engine]:
    """The engines that there are, ours first."""
    asked.models.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    quantize = asked.llama / "llama-quantize" if asked.llama else None
    ours = {**OURS, "num_threads": asked.threads}
    if asked.model == "smollm2":
        four = models.smollm2()
        plain = models.smollm2_bf16(asked.models, quantize)
        yield octavo("octavo gguf", str(four.gguf), **ours)
        if asked.llama:
            yield LlamaEngine("llama.cpp gguf", asked.llama, str(four.gguf), asked.threads)
    else:
        plain = models.llama_1b(asked.models)
    directory = str(plain.directory)
    # The directory holds no tokenizer: the GGUF beside it does, and nothing here needs it.
    yield octavo("octavo bf16", directory, tokenizer=str(plain.gguf), dtype="bfloat16", **ours)
    if asked.llama:
        yield LlamaEngine("llama.cpp bf16", asked.llama, str(plain.gguf), asked.threads)
    environment = {
        "VLLM_CPU_KVCACHE_SPACE": "4",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{asked.threads - 1}",
        "OMP_NUM_THREADS": str(asked.threads),
        "VLLM_USE_AOT_COMPILE": "0",
        "LD_PRELOAD": asked.preload,
    }
    for name, python in (("vllm bf16", asked.vllm), ("vllm+zentorch bf16", asked.zentorch)):
        if python:
            options = {"dtype": "bfloat16", **OURS}
            yield WorkerEngine(name, str(python), "vllm", directory, options, environment, log)
    if asked.transformers:
        options = {"threads": asked.threads}
        yield WorkerEngine(
            "transformers bf16", str(asked.transformers), "transformers", directory, options
        )


def wanted(name: str, beginnings: list[str] | None) -> bool:
    """Whether an engine was asked for."""
    return not beginnings or any(name.startswith(beginning) for beginning in beginnings)


def measure(engines: list[Engine], cases: list[Case], runs: int) -> Iterator[list[Figure]]:
    """The figures so far, behind each round; an engine that fails is left out from there on."""
    rates: dict[tuple[str, str], list[float]] = {}
    try:
        for run in range(runs):
            for case in cases:
                for engine in list(engines):
                    try:
                        rate = engine.measure(case, run)
                    except EngineError as error:
                        print(f"{engine.name} is left out: {error}", file=sys.stderr)
                        engines.remove(engine)
                        continue
                    if rate is not None:
                        rates.setdefault((case.name, engine.name), []).append(rate)
                        told = (
                            f"{run + 1}/{runs}  {case.name:36} {engine.name:22} {rate:9.1f} tok/s"
                        )
                        print(told, file=sys.stderr)
            yield [Figure(case, engine, tuple(told)) for (case, engine), told in rates.items()]
    finally:
        for engine in engines:
            engine.close()


def table(figures: list[Figure]) -> str:
    """A row for each case and engine of ours: the rate, and its ratio to each peer's."""
    lines = ["| case | engine | tok/s | times the peer's, median (smallest to largest) |"]
    lines.append("| --- | --- | --- | --- |")
    for figure in figures:
        if not figure.engine.startswith("octavo"):
            continue
        peers = [
            other
            for other in figures
            if other.case == figure.case and not other.engine.startswith("octavo")
        ]
        ratios = ", ".join(f"{peer.engine} {ratio(figure, peer)}" for peer in peers)
        lines.append(f"| {figure.case} | {figure.engine} | {figure.median:.0f} | {ratios} |")
    return "\n".join(lines)


def ratio(ours: Figure, theirs: Figure) -> str:
    """Round by round."""
    ratios = [a / b for a, b in zip(ours.rates, theirs.rates, strict=False)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def vars_of(figure: Figure) -> dict[str, object]:
    """As JSON."""
    rates = [round(rate, 2) for rate in figure.rates]
    return {"case": figure.case, "engine": figure.engine, "tokens_per_s": rates}


def machine(threads: int) -> dict[str, object]:
    """What the figures were measured on."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")
    return {
        "processor": name or platform.processor(),
        "cores": os.cpu_count(),
        "threads": threads,
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    main()
