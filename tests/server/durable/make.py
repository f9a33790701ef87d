"""A server with a journal in this process, and clients that keep what they have received."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec

from octavo.serving.durable.service import Durability
from octavo.serving.server import Server
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import Client, patient, until

P = ParamSpec("P")

KEY = "a key of a test"
OTHER_KEY = "another key of it"


def in_loop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Return a test that runs in an event loop of its own."""

    @functools.wraps(test)
    def run(*arguments: P.args, **named: P.kwargs) -> None:
        asyncio.run(test(*arguments, **named))

    return run


class Gate:
    """A gate in the engine's steps: it lets a number of them pass."""

    def __init__(self, num_steps: int) -> None:
        self._permits = threading.Semaphore(num_steps)
        self.num_passes = num_steps
        self.num_arrived = 0
        self.runner = ChainRunner(self.wait)

    def open(self, num_steps: int = 100_000) -> None:
        """Let further steps pass."""
        self.num_passes += num_steps
        self._permits.release(num_steps)

    def wait(self) -> None:
        """Wait until one more step may pass."""
        self.num_arrived += 1
        self._permits.acquire()


@contextlib.asynccontextmanager
async def durable(
    directory: Path,
    journal: Path,
    runner: ChainRunner | None = None,
    engine_options: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Client]:
    """Serve with a journal, without a socket; at the end leave the file as a kill would."""
    engine = FakeEngine(directory, runner=runner, **(engine_options or {}))
    config = patient(journal=journal, **{"api_keys": (KEY, OTHER_KEY), **options})
    server = Server(engine, config)
    service = server.durability = Durability.open(server)
    engine.attach()
    service.start()
    async with Client(server) as client:
        client.headers["authorization"] = f"Bearer {KEY}"
        try:
            yield client
        finally:
            server.is_draining = True
            await service.close()
            await server.prompt_pool.close()
            engine.close()


def service_of(client: Client) -> Durability:
    """Return the durable requests of a client's server."""
    service = client.server.durability
    assert service is not None
    return service


async def step_by_step(client: Client, gate: Gate, post: asyncio.Task[Any]) -> Any:
    """Let the engine run one step after each other, so that each has an event of its own."""

    def is_idle() -> bool:
        if post.done():
            return True
        has_tokens = any(answer.tokens for each in service.requests for answer in each.answers)
        records = [each.record for each in client.server.active.values()]
        is_open = all(record.first_byte_at is not None for record in records)
        return gate.num_arrived > gate.num_passes and (is_open or not has_tokens)

    service = service_of(client)
    while not post.done():
        await until(is_idle)
        gate.open(1)
    gate.open()  # a step may have begun behind the end
    return post.result()


@dataclass
class Received:
    """The events of a stream that a client has received whole, by their ids."""

    events: list[tuple[str | None, Any]] = field(default_factory=list)
    is_ended: bool = False

    @property
    def last_id(self) -> str:
        """The id of the last event that has one, as an EventSource keeps it."""
        return next((each for each, _ in reversed(self.events) if each is not None), "0")

    def read(self, text: str) -> None:
        """Add the events of a stream; what follows the last blank line is lost."""
        for event in text.split("\n\n")[:-1]:
            number, data = None, ""
            for line in event.split("\n"):
                name, _, value = line.partition(": ")
                if name == "id":
                    number = value
                elif name == "data":
                    data = value
            if data == "[DONE]":  # an error may precede it, after which the stream continues
                self.is_ended = not any("error" in said for _, said in self.events[-1:])
            elif data:
                self.events.append((number, json.loads(data)))

    @property
    def choices(self) -> list[Any]:
        """The answers in each event."""
        return [event.get("choices", []) for _, event in self.events]

    def tokens(self, index: int = 0) -> list[int]:
        """Return the token ids of one answer."""
        found: list[int] = []
        for choices in self.choices:
            for choice in choices:
                if choice["index"] == index:
                    found += choice.get("token_ids") or []
        return found

    def text(self, index: int = 0) -> str:
        """Return the text of one answer."""
        found = ""
        for choices in self.choices:
            for choice in choices:
                if choice["index"] == index:
                    found += choice.get("text") or choice.get("delta", {}).get("content") or ""
        return found


def received(text: str) -> Received:
    """Return the events of a stream."""
    made = Received()
    made.read(text)
    return made
