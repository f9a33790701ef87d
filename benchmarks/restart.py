"""Measures how fast a killed engine is detected, and its streams continue; all must be exact.

    python benchmarks/restart.py [--model smollm2] [--streams 50] [--kills 10] [--option NAME=JSON]

The engine runs in its own process, on the backend that the options choose. It is killed with
SIGKILL at random moments while streams are open, with `--option spare_engine=true` only while a
spare engine stands by. `detected` is the time until the restart is counted, `first_continues` and
`all_continue` the time until the first or the last open stream has a new token. `processor_seconds`
is the processor time that the new engine had used by then (a spare engine: since the kill), which
says more on a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from octavo import AsyncLLM, RequestOutputKind, SamplingParams
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import make_client
from octavo.options.engine import EngineArguments
from tests.api.tiny import make_model

POLL_SECONDS = 0.001
Texts = dict[int, list[int]]


class Streams:
    """Concurrent requests, and when each received its newest token."""

    def __init__(self, llm: AsyncLLM, num_streams: int, num_tokens: int) -> None:
        self.llm = llm
        self.num_streams = num_streams
        self.num_tokens = num_tokens
        self.tokens: Texts = {}
        self.newest: dict[int, float] = {}
        self.runs = 0

    async def run(self) -> Texts:
        """Run all requests to their ends; return their tokens."""
        self.runs += 1
        self.tokens = {index: [] for index in range(self.num_streams)}
        self.newest.clear()
        await asyncio.gather(*(self._one(index) for index in range(self.num_streams)))
        return self.tokens

    async def _one(self, index: int) -> None:
        chance = random.Random(index)
        prompt = [3 + chance.randrange(50) for _ in range(chance.randint(4, 40))]
        sampling = SamplingParams(
            max_tokens=self.num_tokens,
            temperature=0.8 if index % 2 else 0.0,
            seed=index,
            ignore_eos=True,
            output_kind=RequestOutputKind.DELTA,
        )
        name = f"run{self.runs}-{index}"
        async for output in self.llm.generate(prompt, sampling, name):
            self.tokens[index] += output.outputs[0].token_ids
            self.newest[index] = time.monotonic()

    def open(self) -> list[int]:
        """Return the streams that have begun and have not ended."""
        return [i for i, tokens in self.tokens.items() if 0 < len(tokens) < self.num_tokens]


async def kill(streams: Streams) -> dict[str, float]:
    """Kill the engine; return the seconds until each stage of the recovery."""
    client: Any = streams.llm._client
    restarts = client.engines[0].supervisor.restarts.num_restarts
    interrupted = streams.open()
    spare = (
        client.engines[0].supervisor.spare.run
        if client.engines[0].supervisor.spare.facts is not None
        else None
    )
    used_before = processor_seconds(spare.process.popen.pid) if spare is not None else 0.0
    os.kill(client.engines[0].supervisor.run.process.popen.pid, signal.SIGKILL)
    began = time.monotonic()
    while client.engines[0].supervisor.restarts.num_restarts == restarts:
        await asyncio.sleep(POLL_SECONDS)
    times = {"detected": time.monotonic() - began, "open": float(len(interrupted))}
    times["had_spare"] = float(spare is not None)
    while not client.is_well():
        await asyncio.sleep(POLL_SECONDS)
    # Tokens that the killed engine had sent may come until then, and do not count.
    ready_at = time.monotonic()
    number = client.engines[0].supervisor.run.process.popen.pid

    def note(what: str) -> None:
        times[what] = time.monotonic() - began
        times[f"{what}_processor"] = processor_seconds(number) - used_before

    note("ready")
    waiting = set(interrupted)
    while waiting and len(waiting) == len(interrupted):
        await asyncio.sleep(POLL_SECONDS)
        waiting = {index for index in interrupted if streams.newest[index] <= ready_at}
    note("first_continues")
    while waiting:
        await asyncio.sleep(POLL_SECONDS)
        waiting = {index for index in interrupted if streams.newest[index] <= ready_at}
    note("all_continue")
    return times


def processor_seconds(number: int) -> float:
    """Return the processor time of a process so far, on all cores together."""
    words = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


async def measure(streams: Streams, num_kills: int, seed: int) -> dict[str, Any]:
    """Run once undisturbed, and then until the engine was killed often enough."""
    chance = random.Random(seed)
    began = time.monotonic()
    truth = await streams.run()
    span = time.monotonic() - began
    kills: list[dict[str, float]] = []
    num_unequal = num_runs = 0
    while len(kills) < num_kills:
        await spare_ready(streams)
        run = asyncio.ensure_future(streams.run())
        num_runs += 1
        while not run.done() and len(kills) < num_kills:
            await asyncio.wait([run], timeout=chance.uniform(0.1, 0.9) * span)
            if not run.done() and may_kill(streams):
                kills.append(await kill(streams))
        tokens = await run
        num_unequal += sum(tokens[index] != truth[index] for index in truth)
    names = ("ready", "first_continues", "all_continue")
    return {
        "streams": streams.num_streams,
        "undisturbed_seconds": span,
        "runs": num_runs,
        "unequal_streams": num_unequal,
        "kills_with_spare": sum(int(each["had_spare"]) for each in kills),
        "open_streams_at_kills": [int(each["open"]) for each in kills],
        "seconds": {name: spread([each[name] for each in kills]) for name in ("detected", *names)},
        "processor_seconds": {
            name: spread([each[f"{name}_processor"] for each in kills]) for name in names
        },
    }


def may_kill(streams: Streams) -> bool:
    """Return whether streams are open and, if the options ask for one, a spare engine stands by."""
    client: Any = streams.llm._client
    has_spare = client.engines[0].supervisor.spare.facts is not None
    return bool(streams.open()) and (has_spare or not client.engines[0].wants_spare())


async def spare_ready(streams: Streams) -> None:
    """Wait until a spare engine stands by, if the options ask for one."""
    client: Any = streams.llm._client
    while client.engines[0].wants_spare() and client.engines[0].supervisor.spare.facts is None:
        await asyncio.sleep(POLL_SECONDS)


def spread(values: list[float]) -> dict[str, float]:
    """Return the median and the worst value."""
    ordered = sorted(values)
    return {"median": ordered[len(ordered) // 2], "worst": ordered[-1]}


def start(model: str | None, options: dict[str, Any], directory: Path) -> AsyncLLM:
    """Start an engine with a real model, or with the fake runner."""
    if model:
        return AsyncLLM(model, engine="process", **options)
    tokenizer = str(make_model(directory))
    arguments = EngineArguments(model="fake?step=0.02", tokenizer=tokenizer)
    client = make_client(arguments, [ProcessLauncher("tests.client.fake_engine:make")])
    client.start()
    return AsyncLLM.over(client, arguments)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", help="a real model instead of the fake runner")
    parser.add_argument("--streams", type=int, default=50)
    parser.add_argument("--tokens", type=int, default=60)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=JSON", help="a setting of the engine"
    )
    given = parser.parse_args()
    pairs = [each.partition("=") for each in given.option]
    options: dict[str, Any] = {"max_model_len": 512, "max_num_seqs": 64}
    options |= {name: json.loads(value) for name, _, value in pairs}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        llm = start(given.model, options, Path(name))
        started = time.monotonic() - began
        try:
            streams = Streams(llm, given.streams, given.tokens)
            report = asyncio.run(measure(streams, given.kills, given.seed))
        finally:
            llm.close()
    print(json.dumps({"start_seconds": started, **report}, indent=2))
    return int(report["unequal_streams"] > 0)


if __name__ == "__main__":
    sys.exit(main())
