"""What a prompt worker adds to a prompt, takes in memory, and costs to start.

Each round prepares the same prompt through the pool and in this process; the difference of the
medians is what the worker adds to the time to first token.

    python benchmarks/prompt_workers.py smollm2
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import uvloop

from octavo.loader import resolve
from octavo.options.server import ServerSettings
from octavo.text.tokenizer_files import load_tokenizer_at
from octavo.workers.jobs import Conversation, PromptJob
from octavo.workers.pool import PromptPool
from octavo.workers.prompts import PromptMaker

ROUNDS = 3000
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
JOBS = {
    "text": PromptJob(text="The quick brown fox jumps over the lazy dog. " * 4),
    "chat": PromptJob(conversation=Conversation(messages=QUESTION)),
}


async def measure(path: Path) -> None:
    """Print one line for each kind of prompt, and one for the memory."""
    pool = PromptPool(ServerSettings(), str(path), lambda: None)
    maker = PromptMaker(load_tokenizer_at(path))
    began = time.perf_counter()
    await pool.start()
    print(f"start: {1000 * (time.perf_counter() - began):.0f} ms")
    for name, job in JOBS.items():
        began = time.perf_counter()
        await pool.prepare(job)
        first = 1000 * (time.perf_counter() - began)
        through, inside = [], []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await pool.prepare(job)
            middle = time.perf_counter()
            maker.make(job)
            through.append(1e6 * (middle - began))
            inside.append(1e6 * (time.perf_counter() - middle))
        low, median, high = statistics.quantiles(through, n=4)
        added = median - statistics.median(inside)
        print(
            f"{name}: first {first:.1f} ms; then {median:.0f} us ({low:.0f} to {high:.0f}),"
            f" of which the worker adds {added:.0f} us"
        )
    (worker,) = pool._workers
    print("memory:", memory(worker._process.pid))
    await pool.close()


def memory(process: int) -> str:
    """Return the memory of a process that no other process shares, and all that is resident."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()[1:]
    sizes = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    own = sizes["Private_Dirty"] + sizes["Private_Clean"]
    return f"{own:.1f} MiB of its own, {sizes['Pss']:.1f} proportional, {sizes['Rss']:.1f} resident"


def main() -> None:
    """Read the model's name and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="smollm2", help="its tokenizer is used")
    source = resolve(parser.parse_args().model)
    uvloop.run(measure(source.weights[0] if source.is_gguf else source.directory))


if __name__ == "__main__":
    main()
