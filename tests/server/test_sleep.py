"""Sleep and its end over HTTP, in every order, with requests that run or wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.api.outputs import EngineDeadError
from octavo.client.client import EngineClient
from octavo.server.admin.routes import ADMIN_ROUTES
from octavo.serving.idle import IdleSleep
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import LIMIT, Client, serving, until


class Drowsy:
    """A client of an engine whose process ends when the test says so."""

    def __init__(self, inner: EngineClient) -> None:
        self._inner = inner
        self.is_sleeping = False
        self.is_ending = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def sleep(self) -> None:
        self.is_ending = not self.is_sleeping

    def fall_asleep(self) -> None:
        """End the process, as the engine was asked to."""
        assert self.is_ending
        self.is_ending, self.is_sleeping = False, True

    def wake_up(self) -> None:
        self.is_ending = self.is_sleeping = False


class World:
    """A server whose engine can sleep, and both of its clients."""

    def __init__(self, client: Client, engine: FakeEngine, drowsy: Drowsy) -> None:
        self.client, self.engine, self.drowsy = client, engine, drowsy
        self.admin = Client(client.server, ADMIN_ROUTES, checks_access=False)

    def post(self, path: str) -> asyncio.Task[Any]:
        """Begin an operator's command, whose response may come later."""
        return asyncio.create_task(self.admin.post(path))

    async def sleep(self) -> None:
        """Put the engine to sleep."""
        asleep = self.post("/sleep")
        await until(lambda: self.drowsy.is_ending)
        self.drowsy.fall_asleep()
        assert (await asleep).json() == {"is_sleeping": True}


def run(
    directory: Path, test: Callable[[World], Awaitable[None]], runner: ChainRunner | None = None
) -> None:
    async def main() -> None:
        engine = FakeEngine(directory, runner=runner)
        made: list[Drowsy] = []

        def wrap(inner: EngineClient) -> Any:
            made.append(Drowsy(inner))
            return made[0]

        engine.wrap_client(wrap)
        async with serving(directory, engine) as client:
            world = World(client, engine, made[0])
            async with world.admin:
                await test(world)

    asyncio.run(main())


def test_a_server_that_sleeps_refuses_requests_until_it_wakes(directory: Path) -> None:
    async def test(world: World) -> None:
        await world.sleep()
        assert (await world.admin.get("/is_sleeping")).json() == {"is_sleeping": True}
        assert (await world.client.complete())["error"]["code"] == "sleeping"
        assert (await world.client.get("/health")).status_code == 503
        assert (await world.admin.post("/sleep")).json() == {"is_sleeping": True}
        world.engine.is_ready = False
        woken = world.post("/wake_up")
        await until(lambda: not world.drowsy.is_sleeping)
        assert (await world.client.complete())["error"]["code"] == "engine_not_ready"
        assert not woken.done()
        world.engine.is_ready = True
        assert (await woken).json() == {"is_sleeping": False}
        assert (await world.client.complete(max_tokens=1))["usage"]["completion_tokens"] == 1

    run(directory, test)


def test_a_server_that_nobody_asks_sleeps_until_the_next_request(directory: Path) -> None:
    async def test(world: World) -> None:
        client, server = world.client, world.client.server
        is_used = True
        server.idle = IdleSleep(server.llm, lambda: not is_used, server.clock, 0.01)
        server.idle.start()
        for _ in range(2):
            await asyncio.sleep(0.05)
            assert not world.drowsy.is_ending  # requests are open
            is_used = False
            await until(lambda: world.drowsy.is_ending)
            world.drowsy.fall_asleep()
            await until(lambda: server.idle is not None and server.idle.is_asleep)
            is_used = True
            assert (await client.get("/props")).json()["is_sleeping"]
            assert (await client.get("/health")).status_code == 200
            assert (await client.complete(max_tokens=1))["usage"]["completion_tokens"] == 1
            assert not (await client.get("/props")).json()["is_sleeping"]
        await world.sleep()  # an operator's sleep is not ended by a request
        assert (await client.complete())["error"]["code"] == "sleeping"
        assert (await client.get("/health")).status_code == 503
        await server.idle.close()

    run(directory, test)


def test_a_request_that_comes_while_the_engine_ends_is_answered(directory: Path) -> None:
    async def test(world: World) -> None:
        client, server = world.client, world.client.server
        num_looks = 0

        def is_idle() -> bool:
            nonlocal num_looks
            num_looks += 1
            return num_looks < 3

        server.idle = IdleSleep(server.llm, is_idle, server.clock, 1e-6)
        server.idle.start()
        await until(lambda: world.drowsy.is_ending)
        assert (await client.complete(max_tokens=1))["usage"]["completion_tokens"] == 1
        assert not server.idle.is_asleep
        await server.idle.close()

    run(directory, test)


def test_engines_that_were_given_up_cannot_sleep(directory: Path) -> None:
    async def test(world: World) -> None:
        def give_up() -> None:
            raise EngineDeadError("no more are started")

        world.drowsy.sleep = give_up  # type: ignore[method-assign]
        refused = await world.admin.post("/sleep")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_not_ready")

    run(directory, test)


def test_the_later_of_sleep_and_wake_up_wins_and_the_other_is_a_409(directory: Path) -> None:
    async def test(world: World) -> None:
        asleep = world.post("/sleep")
        await until(lambda: world.drowsy.is_ending)
        assert (await world.admin.post("/wake_up")).json() == {"is_sleeping": False}
        refused = await asleep
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "interrupted")
        await world.sleep()
        world.engine.is_ready = False
        woken = world.post("/wake_up")
        await until(lambda: not world.drowsy.is_sleeping)
        await world.sleep()
        refused = await woken
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "interrupted")
        assert "/wake_up" in refused.json()["error"]["message"]

    run(directory, test)


@pytest.mark.parametrize("other", ["/wake_up", "/resume"])
def test_a_sleep_that_waits_for_requests_can_be_called_off(directory: Path, other: str) -> None:
    gate = threading.Event()

    async def test(world: World) -> None:
        admission = world.client.server.admission
        asked = asyncio.create_task(world.client.complete(max_tokens=5))
        await until(lambda: bool(world.engine.core.scheduler.running))
        asleep = world.post("/sleep?mode=wait")
        await until(lambda: admission.is_held)
        called_off = world.post(other)  # /resume responds once the step has ended
        refused = await asleep
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "interrupted")
        assert not admission.is_held
        assert not world.drowsy.is_ending
        gate.set()
        assert (await called_off).status_code == 200
        assert (await asked)["usage"]["completion_tokens"] == 5
        await world.sleep()

    run(directory, test, ChainRunner(lambda: gate.wait(LIMIT)))


def test_what_a_sleep_cannot_be_is_refused(directory: Path) -> None:
    async def test(world: World) -> None:
        for query, param in (("level=3", "level"), ("mode=nap", "mode"), ("deep=1", "deep")):
            refused = await world.admin.post(f"/sleep?{query}")
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
        plain = FakeEngine(directory)  # it runs in this process
        async with (
            serving(directory, plain) as client,
            Client(client.server, ADMIN_ROUTES, checks_access=False) as admin,
        ):
            refused = await admin.post("/sleep")
            assert refused.status_code == 400
            assert "engine='process'" in refused.json()["error"]["message"]

    run(directory, test)
