"""Measures several engines behind one front end: prefix hits, the cost of routing, deaths.

    python benchmarks/engines.py [hits] [cost] [deaths] [--model smollm2] [--rounds 3]

Without a model the engines are real processes with the real core and KV cache, whose model is a
hash. `hits` runs conversations whose KV two engines have room for together: with the product's
choice of an engine, with a random one, and with one engine that has room for all. `cost` compares
the tokens a second of two engines of one client with those of two clients, each with one engine
and half of the streams. `deaths` ends one engine by SIGKILL under open streams, and compares every
token with those of an undisturbed run. The exit code is 1 if a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from octavo import AsyncLLM, RequestOutputKind, SamplingParams
from octavo.client.journal import client as journal_client
from octavo.client.launcher import Launcher, ProcessLauncher
from octavo.client.process import make_client
from octavo.client.processors import divided
from octavo.observe.machine import processor
from octavo.options.engine import EngineArguments, read_arguments
from octavo.routing import Candidate
from tests.api.tiny import make_model

FAKE = "tests.client.fake_engine:make"
FAKE_BLOCK_TOKENS = 4
NUM_CONVERSATIONS, NUM_TURNS, AT_ONCE = 64, 8, 16
FIRST_TOKENS, TURN_TOKENS, ANSWER_TOKENS = 40, 32, 16
# Of the whole of a conversation, its last answer included.
WHOLE_TOKENS = FIRST_TOKENS + NUM_TURNS * (TURN_TOKENS + ANSWER_TOKENS)
LEAST_OF_ONE, LEAST_OF_RANDOM, MOST_COST, MOST_SECONDS = 0.95, 1.5, 0.03, 3.0
POLL_SECONDS = 0.001


class Settings:
    """The engines that a run asks for."""

    def __init__(self, model: str | None, directory: Path, step: float) -> None:
        self._model = model
        self._step = step
        self._tokenizer = None if model else str(make_model(directory))
        self.block_tokens = 16 if model else FAKE_BLOCK_TOKENS

    def start(
        self, count: int, num_blocks: int, processors: Sequence[Sequence[int]] = ()
    ) -> AsyncLLM:
        """Start a client of so many engines, each with a KV cache of this size."""
        factory, name, options = None, self._model, dict[str, Any]()
        if name is None:
            factory = FAKE
            name = f"fake?step={self._step}&blocks={num_blocks}"
            options["tokenizer"] = self._tokenizer
        else:
            options |= {"num_gpu_blocks_override": num_blocks, "max_model_len": 1024}
            options |= {"block_size": self.block_tokens}
        arguments = read_arguments(name, {**options, "data_parallel_size": count})
        launchers: list[Launcher] = [
            ProcessLauncher(factory, processors=each) for each in processors or divided(count)
        ]
        client = make_client(arguments, launchers)
        client.start()
        return AsyncLLM.over(client, EngineArguments(name, tokenizer=options.get("tokenizer")))


# hits


async def converse(llm: AsyncLLM, seed: int) -> tuple[int, int]:
    """Run all conversations; return the prompts' tokens, and those that a cache had."""
    gate = asyncio.Semaphore(AT_ONCE)
    found = [0, 0]

    async def conversation(index: int) -> None:
        chance = random.Random(f"{seed}/{index}")
        history = [3 + chance.randrange(50) for _ in range(FIRST_TOKENS)]
        for _ in range(NUM_TURNS):
            history += [3 + chance.randrange(50) for _ in range(TURN_TOKENS)]
            sampling = SamplingParams(
                max_tokens=ANSWER_TOKENS, temperature=0.0, ignore_eos=True, detokenize=False
            )
            async with gate:
                outputs = llm.generate({"prompt_token_ids": history}, sampling)
                async for output in outputs:
                    last = output
            assert last.metrics is not None
            found[0] += len(history)
            found[1] += last.metrics.num_cached_tokens
            history += last.outputs[0].token_ids
            await asyncio.sleep(0.05 * chance.random())  # the user thinks

    await asyncio.gather(*map(conversation, range(NUM_CONVERSATIONS)))
    return found[0], found[1]


@contextmanager
def choosing(choice: Callable[[int, Any], int]) -> Iterator[None]:
    """Let another rule choose engines."""
    module: Any = journal_client
    before, module.choose = module.choose, choice
    try:
        yield
    finally:
        module.choose = before


def hits(settings: Settings, seed: int) -> dict[str, Any]:
    """Return the share of prompts' tokens that caches had, for each way to choose an engine."""
    blocks = 1 + NUM_CONVERSATIONS * -(-WHOLE_TOKENS // settings.block_tokens) * 11 // 10
    chance = random.Random(seed)

    def at_random(num_tokens: int, candidates: Sequence[Candidate]) -> int:
        return chance.choice(candidates).engine

    shares: dict[str, float] = {}
    for name, count in (("one", 1), ("chosen", 2), ("random", 2)):
        with ExitStack() as stack:
            if name == "random":
                stack.enter_context(choosing(at_random))
            llm = settings.start(count, blocks // count)
            stack.callback(llm.close)
            num_tokens, num_cached = asyncio.run(converse(llm, seed))
            shares[name] = num_cached / num_tokens
    return {
        **shares,
        "of_one": shares["chosen"] / shares["one"],
        "of_random": shares["chosen"] / shares["random"],
    }


# cost


async def speed(llms: Sequence[AsyncLLM], num_streams: int, num_tokens: int, seed: int) -> float:
    """Return the tokens a second of streams that are divided among clients."""
    requests = 4 * num_streams

    async def one(index: int) -> None:
        chance = random.Random(f"{seed}/{index}")
        prompt = [3 + chance.randrange(50) for _ in range(200)]
        sampling = SamplingParams(
            max_tokens=num_tokens, seed=index, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        async for _ in llms[index % len(llms)].generate({"prompt_token_ids": prompt}, sampling):
            pass

    async def line(number: int) -> None:
        for index in range(number, requests, num_streams):
            await one(index)

    began = time.monotonic()
    await asyncio.gather(*map(line, range(num_streams)))
    return requests * num_tokens / (time.monotonic() - began)


def cost(settings: Settings, num_rounds: int, num_streams: int) -> dict[str, Any]:
    """Return how much slower two engines of one client are than two clients with one each."""
    parts = divided(2)
    blocks = 40_000 // settings.block_tokens
    with ExitStack() as stack:
        pair = settings.start(2, blocks, parts)
        stack.callback(pair.close)
        singles = [settings.start(1, blocks, [part]) for part in parts]
        for each in singles:
            stack.callback(each.close)

        async def main() -> tuple[list[float], list[float]]:
            together: list[float] = []
            apart: list[float] = []
            for number in range(2 * num_rounds + 2):
                is_pair = number % 2 == (number // 2) % 2  # in turns, each first half of the times
                found = await speed(
                    [pair] if is_pair else singles, num_streams, 64, seed=number // 2
                )
                if number > 1:  # the first round warms up
                    (together if is_pair else apart).append(found)
            return together, apart

        together, apart = asyncio.run(main())
    ratios = [one / two for one, two in zip(together, apart, strict=True)]
    return {
        "two_engines": statistics.median(together),
        "two_clients": statistics.median(apart),
        "cost": 1 - statistics.median(ratios),
        "costs": [round(1 - ratio, 4) for ratio in ratios],
    }


# deaths


async def stream_all(
    llm: AsyncLLM, run: str, count: int, newest: dict[int, float]
) -> list[list[int]]:
    """Run streams to their ends; note when each got its newest token."""

    async def one(index: int) -> list[int]:
        prompt = [3 + (index + place) % 50 for place in range(10 + index % 20)]
        sampling = SamplingParams(
            max_tokens=80, seed=index, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        tokens: list[int] = []
        name = f"{run}-{index}"
        async for output in llm.generate({"prompt_token_ids": prompt}, sampling, name):
            tokens += output.outputs[0].token_ids
            newest[index] = time.monotonic()
        return tokens

    return await asyncio.gather(*map(one, range(count)))


def deaths(settings: Settings, num_rounds: int, num_streams: int) -> dict[str, Any]:
    """Return how long streams pause when their engine is killed, and how many were changed."""
    llm = settings.start(2, 40_000 // settings.block_tokens)
    client: Any = llm._client

    async def one_death(truth: list[list[int]], span: float, number: int) -> tuple[float, int]:
        newest: dict[int, float] = {}
        run = asyncio.ensure_future(stream_all(llm, f"run{number}", num_streams, newest))
        await asyncio.sleep(span * (0.2 + 0.5 * number / max(1, num_rounds)))
        victim = client.members[number % 2]
        moved = [entry.name for entry in client._journal if entry.holder is victim.requests]
        os.kill(victim.engine.supervisor.run.process.popen.pid, signal.SIGKILL)
        killed_at = time.monotonic()
        while victim.is_well():
            await asyncio.sleep(POLL_SECONDS)
        noticed_at = time.monotonic()
        waiting = {int(name.partition("-")[2].partition("#")[0]) for name in moved}
        assert waiting, "no stream was open"
        while waiting and not run.done():
            await asyncio.sleep(POLL_SECONDS)
            waiting = {index for index in waiting if newest.get(index, 0.0) <= noticed_at}
        pause = time.monotonic() - killed_at
        tokens = await run
        while not victim.is_well():
            await asyncio.sleep(POLL_SECONDS)
        return pause, sum(one != other for one, other in zip(tokens, truth, strict=True))

    async def main() -> dict[str, Any]:
        began = time.monotonic()
        truth = await stream_all(llm, "truth", num_streams, {})
        span = time.monotonic() - began
        found = [await one_death(truth, span, number) for number in range(num_rounds)]
        return {
            "seconds": [round(pause, 3) for pause, _ in found],
            "changed_streams": sum(changed for _, changed in found),
        }

    try:
        return asyncio.run(main())
    finally:
        llm.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "what", nargs="*", metavar="WHAT", help="hits, cost, deaths; all by default"
    )
    parser.add_argument("--model", help="a real model instead of the hash")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=0, help="of cost (32) and deaths (50)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--step", type=float, default=0.004, help="seconds of a step of the hash")
    given = parser.parse_args()
    wanted = given.what or ["hits", "cost", "deaths"]
    report: dict[str, Any] = {"processor": processor()[0]}
    is_missed = False
    with tempfile.TemporaryDirectory() as name:
        settings = Settings(given.model, Path(name), given.step)
        if "hits" in wanted:
            report["hits"] = found = hits(settings, given.seed)
            is_missed |= found["of_one"] < LEAST_OF_ONE or found["of_random"] < LEAST_OF_RANDOM
        if "cost" in wanted:
            report["cost"] = found = cost(settings, given.rounds, given.streams or 32)
            is_missed |= found["cost"] > MOST_COST
        if "deaths" in wanted:
            report["deaths"] = found = deaths(settings, given.rounds, given.streams or 50)
            is_missed |= found["changed_streams"] > 0 or max(found["seconds"]) > MOST_SECONDS
    print(json.dumps(report, indent=2))
    return int(is_missed)


if __name__ == "__main__":
    sys.exit(main())
