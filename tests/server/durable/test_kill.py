"""`kill -9` of a real server under fifty streams loses and repeats no token of any.

The server is that of `octavo serve`, with the tiny model on the native engine. Each client connects
again after a kill and continues behind the last event that it has received whole.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.tiny import make_model
from tests.server.durable.make import Received
from tests.server.make import until

pytest.importorskip("octavo.backends.native._native")

NUM_STREAMS = 50
NUM_KILLS = 4
NUM_TOKENS = 300
LIMIT_SECONDS = 300.0  # far more than needed; only a hang reaches it


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = make_model(tmp_path_factory.mktemp("model"))
    config = json.loads((directory / "config.json").read_text())
    config["max_position_embeddings"] = 512
    (directory / "config.json").write_text(json.dumps(config))
    return directory


class Serve:
    """A process of `octavo serve` with a journal."""

    def __init__(self, model: Path, journal: Path) -> None:
        options = ["--journal", journal, "--port", 0, "--num-threads", 1, "--max-num-seqs", 64]
        options += ["--num-gpu-blocks-override", NUM_STREAMS * 512 // 16, "--backend", "native"]
        options += ["--log-level", "warning"]
        program = [sys.executable, "-m", "octavo", "serve", str(model), *map(str, options)]
        self.process = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
        try:
            self.url = self._url()
        except BaseException:
            self.kill()
            raise

    def _url(self) -> str:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if " at http://" in line:
                return line.rpartition(" at ")[2].strip()
        raise AssertionError("the server has ended")

    def kill(self) -> None:
        """Kill the process as the kernel does when memory runs out."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def serve(model: Path, tmp_path: Path) -> Iterator[Callable[[], Serve]]:
    started: list[Serve] = []

    def start() -> Serve:
        started.append(Serve(model, tmp_path / "journal"))
        return started[-1]

    yield start
    for each in started:
        each.kill()


class Follower:
    """A client of one stream that connects again until it has all of it."""

    def __init__(self, index: int, world: World) -> None:
        chance = random.Random(index)
        self.body: dict[str, Any] = {
            "prompt": [2 + chance.randrange(290) for _ in range(chance.randint(1, 60))],
            "max_tokens": NUM_TOKENS,
            "temperature": 0.8 if index % 2 else 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
        }
        self.name = f"{world.name}-{index}"
        if index % 2:
            self.body["seed"] = index
        else:
            self.body["logprobs"] = 1
        self.world = world
        self.received = Received()
        self.num_connections = 0

    async def run(self) -> None:
        """Read the stream to its end, over as many connections as it takes."""
        while not self.received.is_ended:
            url = await self.world.url()
            with contextlib.suppress(httpx.TransportError):
                await self._connect(url)

    async def _connect(self, url: str) -> None:
        self.num_connections += 1
        position = self.received.last_id
        if position == "0":
            path, method, body = "/v1/completions", "POST", self.body
        else:
            path, method = f"/v1/streams/{self.name}?from={position}", "GET"
            body = None
        rest = ""
        headers = {"x-request-id": self.name}
        async with self.world.client.stream(
            method, url + path, json=body, headers=headers
        ) as response:
            if response.status_code == 503:  # the server is about to be killed
                return
            assert response.status_code == 200, await response.aread()
            async for part in response.aiter_text():
                rest += part
                whole, blank, rest = rest.rpartition("\n\n")
                self.received.read(whole + blank)


class World:
    """The clients and the server that they look for."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.server: Serve | None = None
        limits = httpx.Limits(max_connections=None)
        self.client = httpx.AsyncClient(timeout=LIMIT_SECONDS, limits=limits, trust_env=False)
        self.followers = [Follower(index, self) for index in range(NUM_STREAMS)]

    async def url(self) -> str:
        """Return the address of the server; wait for one if there is none."""
        await until(lambda: self.server is not None)
        assert self.server is not None
        return self.server.url

    @property
    def num_tokens(self) -> int:
        """The tokens that all clients have received."""
        return sum(len(each.received.tokens()) for each in self.followers)

    async def _received(self, num_tokens: int, work: asyncio.Future[Any]) -> None:
        """Wait until the clients have received so many tokens, or all have ended."""
        await until(lambda: work.done() or self.num_tokens >= num_tokens)

    async def run(self, kills: list[int], serve: Callable[[], Serve]) -> list[Any]:
        """Return all answers; kill the server when so many tokens have been received."""
        work = asyncio.gather(*(each.run() for each in self.followers))
        for num_tokens in kills:
            await self._received(num_tokens, work)
            if work.done():
                break
            killed, self.server = self.server, None
            assert killed is not None
            await asyncio.to_thread(killed.kill)
            self.server = await asyncio.to_thread(serve)
        await work
        await self.client.aclose()
        return [
            (each.received.tokens(), each.received.text(), logprobs(each.received))
            for each in self.followers
        ]


def logprobs(received: Received) -> list[Any]:
    """Return the log-probabilities of a stream, token by token."""
    found: list[Any] = []
    for choices in received.choices:
        for choice in choices:
            written = choice["logprobs"] or {"tokens": [], "token_logprobs": [], "text_offset": []}
            found += zip(
                written["tokens"], written["token_logprobs"], written["text_offset"], strict=True
            )
    return found


@pytest.mark.slow
def test_kills_of_the_server_under_fifty_streams_change_no_token(
    serve: Callable[[], Serve],
) -> None:
    chance = random.Random(4)

    async def world() -> None:
        async with asyncio.timeout(LIMIT_SECONDS):
            last = World("undisturbed")
            last.server = await asyncio.to_thread(serve)
            undisturbed = await last.run([], serve)
            assert all(len(tokens) == NUM_TOKENS for tokens, _, _ in undisturbed)
        most, latest = NUM_STREAMS * NUM_TOKENS, NUM_STREAMS * NUM_TOKENS * 3 // 4
        # Clients that pause may find the ends of their streams before a kill: then once more.
        while sum(each.num_connections > 1 for each in last.followers) < NUM_STREAMS // 2:
            async with asyncio.timeout(LIMIT_SECONDS):
                server, last = last.server, World(f"killed-{latest}")
                last.server = server
                kills = sorted(chance.randrange(most // 50, latest) for _ in range(NUM_KILLS))
                answers = await last.run(kills, serve)
                for index, (expected, found) in enumerate(zip(undisturbed, answers, strict=True)):
                    assert found == expected, index
            latest = latest * 3 // 4
            assert latest > most // 50, "the streams always end before the kills"

    asyncio.run(world())
