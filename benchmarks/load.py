"""Measures the time from the start of a process to the first token of a model that it loads.

    python benchmarks/load.py --runs 15
    python benchmarks/load.py --model path/to/model.gguf --json build/load.json

Every run is a fresh process. A first run, which is not counted, compiles the Python files, as an
installation does, and brings the model's file into the page cache. Times count from the moment
before the process is created. `processor` is the processor time of the process on all cores,
including the system's; a busy machine changes it less than the elapsed time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # so that the program can be called by its path

from octavo.env import child_environment  # noqa: E402

WHOLE, LOADED = "process start → first token", "LLM(…) → first token"
PROCESSOR = "processor"
# The process prints its parts in order, as (name, seconds).
SCRIPT = """
import json, sys, time
laps = [("start the interpreter", time.clock_gettime(time.CLOCK_MONOTONIC) - float(sys.argv[2]))]
began = time.perf_counter()
from octavo import LLM, SamplingParams
LLM
imported = time.perf_counter()
laps.append(("import", imported - began))
llm = LLM(sys.argv[1])
made = time.perf_counter()
laps += llm._model.facts.start_seconds
laps.append(("the rest of LLM(…)", made - imported - sum(s for _, s in laps[2:])))
one = SamplingParams(max_tokens=1, temperature=0.0)
assert llm.generate("The capital of France is", one, use_tqdm=False)[0].outputs[0].token_ids
laps.append(("first token", time.perf_counter() - made))
print(json.dumps(laps), flush=True)
"""


def run_once(model: str) -> dict[str, float]:
    """Run one process; return the seconds of each part and in total."""
    environment = child_environment(
        {
            "PYTHONPATH": str(ROOT),
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(ROOT / "build" / "load-bytecode"),
        }
    )
    began = time.clock_gettime(time.CLOCK_MONOTONIC)
    process = subprocess.Popen(
        [sys.executable, "-P", "-W", "ignore", "-c", SCRIPT, model, repr(began)],
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    whole = time.clock_gettime(time.CLOCK_MONOTONIC) - began
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    if status != 0 or not line:
        raise SystemExit(f"the process ended with status {status} and printed nothing")
    parts = dict(json.loads(line))
    before = parts["start the interpreter"] + parts["import"]
    loaded = sum(parts.values()) - before
    return {**parts, LOADED: loaded, WHOLE: whole, PROCESSOR: usage.ru_utime + usage.ru_stime}


def table(runs: list[dict[str, float]]) -> str:
    """Format the median and the minimum of each part, in milliseconds."""
    lines = ["| part | median ms | minimum ms |", "| --- | --- | --- |"]
    for part in runs[0]:
        times = [run[part] * 1000 for run in runs]
        lines.append(f"| {part} | {statistics.median(times):.1f} | {min(times):.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--runs", type=int, default=15)
    parser.add_argument("--json", type=Path, help="where to write the seconds of every run")
    asked = parser.parse_args()
    run_once(asked.model)
    runs = [run_once(asked.model) for _ in range(asked.runs)]
    if asked.json is not None:
        asked.json.parent.mkdir(parents=True, exist_ok=True)
        asked.json.write_text(json.dumps(runs, indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
