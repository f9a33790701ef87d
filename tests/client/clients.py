"""Clients of real processes with a fake engine, and callers that record their events."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from octavo.api.outputs import EngineDeadError
from octavo.client.launcher import ChildProcess, ProcessLauncher
from octavo.client.process import ProcessClient, make_client
from octavo.client.restart_policy import Timing
from octavo.core.request import Abort, Request, TokenEvent
from octavo.core.sampling_params import SamplingParams
from octavo.options.engine import EngineArguments
from octavo.wire.commands import Reply
from tests.sim.truth import whole_output

FACTORY = "tests.client.fake_engine:make"
LIMIT = 300.0  # seconds for anything that a test waits for; never part of what it checks


def patient(**options: Any) -> Timing:
    """Return limits that no pause of an engine on a busy machine exceeds, and these."""
    return Timing(**{"silence_seconds": LIMIT, "watchdog_seconds": LIMIT, **options})


def start(settings: str = "", timing: Timing | None = None, **options: Any) -> ProcessClient:
    """Return a client whose engine is ready."""
    arguments = EngineArguments(model=f"fake?{settings}", **options)
    client = make_client(arguments, [ProcessLauncher(FACTORY)], timing or patient())
    client.start()
    return client


@contextmanager
def running(
    settings: str = "", timing: Timing | None = None, **options: Any
) -> Iterator[ProcessClient]:
    """Yield a client whose engine is ready, and close it afterwards."""
    client = start(settings, timing, **options)
    try:
        yield client
    finally:
        client.close()


def process_of(client: ProcessClient) -> Any:
    """Return the process of the current engine."""
    run = client.engines[0].supervisor.run
    assert run is not None
    assert isinstance(run.process, ChildProcess)
    return run.process.popen


def request(name: str, prompt: Sequence[int] = (1, 2, 3), **sampling: Any) -> Request:
    """Make a request for the fake model, which ends by its length by default."""
    sampling = {"seed": 1, "max_tokens": 20, "ignore_eos": True, **sampling}
    return Request(name, array("i", prompt), SamplingParams(**sampling), time.monotonic())


class Caller:
    """A caller that records and checks the events of all its requests."""

    def __init__(self, client: ProcessClient) -> None:
        self.client = client
        self.tokens: dict[str, list[int]] = {}
        self.ends: dict[str, TokenEvent] = {}
        self.events: list[TokenEvent] = []
        self.death: EngineDeadError | None = None
        self._has_events = asyncio.Event()
        client.attach(self._take, self._die)

    def send(self, *events: Request | Abort) -> None:
        for event in events:
            if isinstance(event, Request):
                self.tokens[event.request_id] = []
        self.client.send(events)

    def _take(self, events: Sequence[TokenEvent]) -> None:
        for event in events:
            tokens = self.tokens[event.request_id]
            assert event.request_id not in self.ends, "an event after the end"
            assert event.position == len(tokens), "a token lost or repeated"
            tokens.extend(event.tokens)
            self.events.append(event)
            if event.finish_reason is not None:
                self.ends[event.request_id] = event
        self._has_events.set()

    def _die(self, error: EngineDeadError) -> None:
        self.death = error
        self._has_events.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until events have made the condition true."""
        async with asyncio.timeout(LIMIT):
            while not condition():
                self._has_events.clear()
                await self._has_events.wait()

    def is_done(self) -> bool:
        return len(self.ends) == len(self.tokens)

    async def all_ended(self) -> None:
        await self.until(self.is_done)

    async def another_event(self) -> None:
        """Wait until one more event has come."""
        num_events = len(self.events)
        await self.until(lambda: len(self.events) > num_events)

    async def some_tokens(self, name: str, count: int = 1) -> None:
        await self.until(lambda: len(self.tokens[name]) >= count)


async def error_code(reply: Awaitable[Reply]) -> str | None:
    """Wait for the reply to a command; return the code of its error, if it is one."""
    error = (await reply).error
    return None if error is None else error.code


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for a condition that no event announces, by polling."""
    async with asyncio.timeout(LIMIT):
        while not condition():
            await asyncio.sleep(0.01)


def run(world: Callable[[], Awaitable[None]]) -> None:
    """Run a test in an event loop of its own, and check that it leaves no task behind."""

    async def whole() -> None:
        await world()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, f"left behind: {others}"

    asyncio.run(whole())


def check(caller: Caller, *requests: Request) -> None:
    """Check that each request got exactly the output of an undisturbed engine."""
    for one in requests:
        tokens, reason = whole_output(one, 4096)
        assert caller.tokens[one.request_id] == tokens, one.request_id
        assert caller.ends[one.request_id].finish_reason == reason


def open_files() -> set[str]:
    """Return what the open descriptors of this process lead to."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the descriptor of the listing itself
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return found
