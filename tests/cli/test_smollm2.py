"""The default model on the command line: its answer, and the memory that was predicted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest

from octavo.cli.commands import INTERRUPTED
from octavo.env import child_environment
from octavo.options import DEFAULT_MODEL

pytestmark = pytest.mark.slow

# Fills the KV cache with full-size steps in a process of its own, and watches its memory.
# The memory that importing torch takes is not part of the prediction.
MEASURE = """
import json, threading
import torch
from octavo import LLM, PoolingParams, SamplingParams
from octavo.observe.machine import own_bytes

before, most, done = own_bytes(), [0], threading.Event()

def watch():
    while not done.wait(0.002):
        most[0] = max(most[0], own_bytes() - before)

watcher = threading.Thread(target=watch, daemon=True)
watcher.start()
llm = LLM("smollm2", max_model_len=256, max_num_seqs=3, max_num_batched_tokens=256)
prompts = [{"prompt_token_ids": list(range(k, k + 244))} for k in (1000, 2000, 3000)]
llm.generate(prompts, SamplingParams(max_tokens=12, ignore_eos=True), use_tqdm=False)
# All rows are wanted: the largest step.
llm.embed(prompts, pooling_params=PoolingParams(pooling="mean"), use_tqdm=False)
done.set()
watcher.join()
most[0] = max(most[0], own_bytes() - before)  # on a busy machine the watcher may have come late
config = llm._model.engine.config
bill = config.bill
fixed = bill.fixed_bytes - bill.grammar_bytes  # no text has a shape
print(json.dumps([fixed + config.core.num_blocks * bill.block_bytes, most[0]]))
"""


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env=child_environment({"OMP_NUM_THREADS": "1"}),
    )
    return done.stdout


def test_it_takes_the_memory_it_was_said_to() -> None:
    predicted, measured = json.loads(run("-c", MEASURE))
    assert abs(measured - predicted) <= 0.05 * predicted, (predicted, measured)


def test_it_answers() -> None:
    words = ("--temperature", "0", "--max-tokens", "8", "--max-model-len", "256")
    prompt = "What is the capital of France? Answer in one word."
    assert "Paris" in run("-m", "octavo", "run", DEFAULT_MODEL, *words, prompt)


# It ends while the engine's thread computes a step of a second or two.
LEAVE = """
import asyncio
from octavo import AsyncLLM, SamplingParams

async def main():
    llm = AsyncLLM(cpu_isa="scalar", num_threads=1)
    stream = llm.generate("Two upon a time " * 15, SamplingParams(max_tokens=2))
    first = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0.1)

asyncio.run(main())
"""


def test_a_program_may_end_during_a_step() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LEAVE],
        capture_output=True,
        text=True,
        check=False,
        env=child_environment({}),
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_twice_ends_the_program_during_a_step() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "octavo", "run", DEFAULT_MODEL]
    command += ["--raw", "Once upon a time"]
    command += ["--cpu-isa", "scalar", "--num-threads", "1", "--max-tokens", "3000"]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment({}),
    )
    assert process.stdout is not None
    assert process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    time.sleep(0.03)  # the first is handled, and the program waits for the end of a step
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == INTERRUPTED
    assert errors.strip() == b""
