"""Readiness says whether the engine completes steps, by one of its own if none was seen lately."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from octavo.client.vitals import EngineVitals
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import LIMIT, Client, serving, until

LONG_AGO = -1e9  # on the clock of the steps


class StuckVitals(EngineVitals):
    """The vitals of an engine whose steps are not seen."""

    def __init__(self) -> None:
        super().__init__(LONG_AGO)

    def note_step(self, now: float) -> None:
        pass


def client_of(engine: FakeEngine) -> Any:
    """Return the client of the engine, whose parts a test may replace."""
    return engine._client


async def ready(client: Client) -> tuple[int, Any]:
    """Return the status of /health/ready, and the code of its error."""
    answer = await client.get("/health/ready")
    return answer.status_code, answer.json().get("error", {}).get("code")


async def gauge(client: Client) -> str:
    """Return the metric of readiness."""
    lines = (await client.get("/metrics")).text.splitlines()
    (line,) = [line for line in lines if line.startswith("octavo:ready{")]
    return line.rsplit(" ", 1)[1]


def test_an_idle_engine_must_complete_a_step_which_all_that_ask_share(directory: Path) -> None:
    async def main() -> None:
        engine = FakeEngine(directory)
        async with serving(directory, engine, ready_seconds=LIMIT) as client:
            await client.complete(max_tokens=2)
            stats = engine.core.scheduler.stats
            before = stats.num_tokens
            assert await ready(client) == (200, None)
            assert stats.num_tokens == before, "a step was seen lately"
            engine.vitals.stepped_at = LONG_AGO
            answers = await asyncio.gather(*[ready(client) for _ in range(5)])
            assert answers == [(200, None)] * 5
            assert engine.vitals.stepped_at > LONG_AGO
            assert stats.num_tokens == before + 1
            text = (await client.get("/metrics")).text
            assert 'octavo:generation_tokens_total{model_name="tiny",engine="0"} 2.0' in text

    asyncio.run(main())


def test_an_engine_that_completes_no_step_is_not_ready(directory: Path) -> None:
    gate = threading.Event()
    engine = FakeEngine(directory, runner=ChainRunner(lambda: gate.wait(LIMIT)))

    async def main() -> None:
        async with serving(directory, engine, ready_seconds=0.01) as client:
            engine.vitals.stepped_at = LONG_AGO
            assert await ready(client) == (503, "engine_not_ready")
            assert await gauge(client) == "0.0"
            assert (await client.get("/health/live")).status_code == 200
            gate.set()
            await until(lambda: engine.vitals.stepped_at > LONG_AGO)
            await until(lambda: not engine.core.scheduler.sequences)  # nothing of it is left
            engine.vitals.stepped_at = float("inf")
            assert await ready(client) == (200, None)
            assert await gauge(client) == "1.0"

    asyncio.run(main())


def test_a_paused_engine_is_ready_without_a_step(directory: Path) -> None:
    async def main() -> None:
        engine = FakeEngine(directory)
        async with serving(directory, engine, ready_seconds=0.01) as client:
            await engine.pause()
            await until(lambda: engine.snapshot().is_paused)
            engine.vitals.stepped_at = LONG_AGO
            assert await ready(client) == (200, None)

    asyncio.run(main())


def test_an_engine_that_is_paused_while_it_is_asked_is_ready(directory: Path) -> None:
    async def main() -> None:
        gate = threading.Event()
        engine = FakeEngine(directory, runner=ChainRunner(lambda: gate.wait(LIMIT)))
        async with serving(directory, engine, ready_seconds=0.01) as client:
            engine.vitals.stepped_at = LONG_AGO
            assert await ready(client) == (503, "engine_not_ready")
            pausing = asyncio.ensure_future(engine.pause())  # once the step has ended
            await asyncio.sleep(0)
            client_of(engine).vitals = StuckVitals()
            gate.set()
            await pausing
            assert await ready(client) == (200, None)
            assert await gauge(client) == "1.0"

    asyncio.run(main())


def test_an_engine_that_fails_on_the_step_is_not_ready(directory: Path) -> None:
    async def main() -> None:
        engine = FakeEngine(directory)
        engine.runner.poisoned = {"canary"}
        async with serving(directory, engine, ready_seconds=LIMIT) as client:
            client_of(engine).vitals = StuckVitals()
            assert await ready(client) == (503, "engine_not_ready")

    asyncio.run(main())
