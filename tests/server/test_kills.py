"""Ten times `kill -9` of a real engine under fifty HTTP streams changes no answer.

The server and the engine are processes, as with `octavo serve`, with the tiny model on the native
engine. No result depends on time: if the streams end before the tenth kill, they run again.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from benchmarks.served.client import Served, ask, metric
from tests.api.tiny import make_model

pytest.importorskip("octavo.backends.native._native")

NUM_STREAMS = 50
NUM_KILLS = 10
NUM_EARLY = 2  # kills while an engine starts
LIMIT_SECONDS = 500.0  # far more than needed; only a hang reaches it


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = make_model(tmp_path_factory.mktemp("model"))
    config = json.loads((directory / "config.json").read_text())
    config["max_position_embeddings"] = 512
    (directory / "config.json").write_text(json.dumps(config))
    options = {
        "backend": "native",
        "num_threads": 1,
        "num_gpu_blocks_override": NUM_STREAMS * 512 // 16,
        "max_num_seqs": 64,
    }
    settings: dict[str, Any] = {"model": str(directory), "options": options, "engine": None}
    # An engine that the machine pauses is not silent: nothing else may kill one.
    timing = {"silence_seconds": LIMIT_SECONDS, "watchdog_seconds": LIMIT_SECONDS}
    made = Served({**settings, "server": {}, "timing": timing})
    try:
        yield made
    finally:
        made.process.kill()
        made.process.communicate()


class Streams:
    """Fifty concurrent requests, and how much they have received."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.num_open = 0
        self.num_bytes = 0  # received by all together
        self.heard: set[int] = set()  # requests of this run that have received anything

    async def run(self) -> list[Any]:
        """Return the complete answer of each request."""
        return await asyncio.gather(*map(self._one, range(NUM_STREAMS)))

    async def _one(self, index: int) -> Any:
        chance = random.Random(index)
        body = {
            "prompt": [2 + chance.randrange(290) for _ in range(chance.randint(1, 60))],
            "max_tokens": 400,
            "temperature": 0.8 if index % 2 else 0.0,
            "seed": index,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
        }
        self.num_open += 1
        answer = await ask(self.port, body, hear=partial(self._hear, index))
        self.num_open -= 1
        assert answer.status == 200
        assert answer.is_ended
        assert answer.error() is None
        (choice,) = answer.said()
        assert len(choice[0]) == 400
        return choice

    def _hear(self, index: int, num_bytes: int) -> None:
        self.heard.add(index)
        self.num_bytes += num_bytes

    async def all_on(self) -> None:
        """Wait until every request has received something.

        A request that arrives while no engine is ready is rejected, which is not tested here.
        """
        while len(self.heard) < NUM_STREAMS:
            await asyncio.sleep(0.002)

    async def go_on(self) -> None:
        """Wait until a request receives something, or all have ended."""
        before = self.num_bytes
        while self.num_open and self.num_bytes == before:
            await asyncio.sleep(0.002)


async def ready(served: Served) -> int:
    """Wait until an engine is ready, and return its process.

    A server with a living engine has noticed the death of the last one, so that the readiness is
    that of the living one.
    """
    while (number := served.engine()) is None:
        await asyncio.sleep(0.002)
    while not await metric(served, "ready"):
        await asyncio.sleep(0.005)
    return number


async def killed(served: Served, streams: Streams, chance: random.Random, early: bool) -> bool:
    """Kill an engine at a random moment; return False if the streams ended before."""
    if early:
        while (number := served.engine()) is None:
            await asyncio.sleep(0.002)
    else:
        number = await ready(served)
        await streams.go_on()
    await asyncio.sleep(chance.random() * 0.1)
    if not streams.num_open:
        return False
    os.kill(number, signal.SIGKILL)
    while served.engine() == number:
        await asyncio.sleep(0.002)
    return True


@pytest.mark.slow
def test_ten_kills_under_fifty_streams_change_no_byte(served: Served) -> None:
    chance = random.Random(10)
    early = set(chance.sample(range(1, NUM_KILLS), NUM_EARLY))

    async def world() -> None:
        streams = Streams(served.port)
        undisturbed = await streams.run()
        assert len({str(answer) for answer in undisturbed}) == NUM_STREAMS
        num_kills = 0
        while num_kills < NUM_KILLS:
            await ready(served)
            streams.heard.clear()  # here: `run` begins only when this task waits
            run = asyncio.ensure_future(streams.run())
            await streams.all_on()
            while num_kills < NUM_KILLS and not run.done():
                num_kills += await killed(served, streams, chance, num_kills in early)
            assert await run == undisturbed

    async def bounded() -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            await world()

    asyncio.run(bounded())
    assert served.end() == 0
