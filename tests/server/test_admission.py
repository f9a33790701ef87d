"""The door: bounds, fairness between keys, deadlines, and what rejections say."""

from __future__ import annotations

import asyncio
import re
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from octavo.server.admission import Admission, Ticket
from octavo.server.http.errors import ApiError
from octavo.server.settings import ServerConfig
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import LIMIT, events, serving, until


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def is_open(admission: Admission, number: int) -> bool:
    """Whether so many requests are in the house."""
    return admission.num_open == number


def door(clock: Clock | None = None, room: int = 2, **options: Any) -> Admission:
    reasons: list[str] = []
    config = ServerConfig(max_running_sequences=room, **options)
    admission = Admission(config, 64, clock or Clock(), reasons.append)
    admission.reasons = reasons  # type: ignore[attr-defined]
    return admission


async def line_up(admission: Admission, owner: str, num_tokens: int, priority: int = 0) -> Any:
    """A ticket, and the task that waits for its turn."""
    ticket = admission.knock(owner, 10)
    task = asyncio.ensure_future(ticket.wait(num_tokens, 1, priority))
    await asyncio.sleep(0)
    return ticket, task


def test_there_is_room_for_so_many_sequences() -> None:
    async def main() -> None:
        admission = door(room=2)
        entries = [await line_up(admission, "a", 5) for _ in range(4)]
        await asyncio.sleep(0)
        assert [task.done() for _, task in entries] == [True, True, False, False]
        assert (admission.num_inside, admission.num_waiting) == (2, 2)
        assert admission.waiting_tokens == 10
        entries[0][0].leave()
        entries[0][0].leave()
        await asyncio.sleep(0)
        assert [task.done() for _, task in entries] == [True, True, True, False]
        for ticket, task in entries:
            ticket.leave()
            task.cancel()
        assert admission.num_inside == admission.num_waiting == admission.num_open == 0
        assert admission.waiting_tokens == admission.waiting_bytes == 0

    asyncio.run(main())


def test_a_key_that_asks_much_does_not_keep_others_out() -> None:
    """Nine wait for one key and then one for another: the other is next."""

    async def main() -> None:
        admission = door(room=1)
        first, _ = await line_up(admission, "greedy", 100)
        greedy = [await line_up(admission, "greedy", 100) for _ in range(8)]
        modest, turn = await line_up(admission, "modest", 100)
        first.leave()
        await asyncio.sleep(0)
        assert turn.done()
        assert not any(task.done() for _, task in greedy)
        modest.charge(10_000)
        modest.leave()
        served = []
        again, _ = await line_up(admission, "modest", 100)
        for _ in range(8):
            await asyncio.sleep(0)
            owner = next(t for t, task in greedy if task.done() and t not in served)
            served.append(owner)
            owner.leave()
        assert again.num_tokens == 100, "and what it was given before counts against it"
        again.leave()

    asyncio.run(main())


def test_rest_is_not_saved_up() -> None:
    async def main() -> None:
        admission = door(room=1)
        busy, _ = await line_up(admission, "busy", 50_000)
        waiting, _ = await line_up(admission, "busy", 10)
        newcomer, _ = await line_up(admission, "new", 10)
        assert admission._lanes["new"].served == admission._lanes["busy"].served
        for ticket in (busy, waiting, newcomer):
            ticket.leave()

    asyncio.run(main())


def test_inside_one_key_the_lower_priority_goes_first() -> None:
    async def main() -> None:
        admission = door(room=1)
        first, _ = await line_up(admission, "a", 1)
        later, late = await line_up(admission, "a", 1, priority=5)
        sooner, soon = await line_up(admission, "a", 1, priority=-5)
        first.leave()
        await asyncio.sleep(0)
        assert (soon.done(), late.done()) == (True, False)
        sooner.leave()
        later.leave()

    asyncio.run(main())


def test_bounds_are_held_with_the_time_to_come_again() -> None:
    async def main() -> None:
        clock = Clock()
        admission = door(clock, 1, max_waiting_requests=3, max_waiting_bytes=100)
        tickets = [(await line_up(admission, "a", 1))[0] for _ in range(4)]
        with pytest.raises(ApiError) as full:
            admission.knock("b", 1)
        assert full.value.status == 429
        assert full.value.code == "queue_full"
        tickets.pop().leave()
        with pytest.raises(ApiError) as heavy:
            admission.knock("b", 90)
        assert heavy.value.code == "bytes"
        for ticket in tickets:  # one a second
            clock.now += 1.0
            ticket.leave()
        assert admission.reasons == ["queue_full", "bytes"]  # type: ignore[attr-defined]

    asyncio.run(main())


def test_the_wait_is_foretold_from_how_fast_requests_end() -> None:
    async def main() -> None:
        clock = Clock()
        admission = door(clock, 1, max_waiting_requests=9)
        assert admission.seconds_to_wait() == 0.0
        tickets: list[Ticket] = [(await line_up(admission, "a", 1))[0] for _ in range(8)]
        for ticket in tickets[:4]:
            clock.now += 2.0
            ticket.leave()
            await asyncio.sleep(0)
        assert admission.num_waiting == 3
        assert admission.seconds_to_wait() == pytest.approx(4 * 6.0 / 4)
        admission.knock("a", 1)
        with pytest.raises(ApiError, match="the queue takes about") as late:
            admission.check_deadline(1.0)
        assert dict(late.value.headers)[b"retry-after"] == b"8"
        admission.check_deadline(60.0)
        with pytest.raises(ApiError):
            admission.check_deadline(5.9)
        for ticket in tickets:
            ticket.leave()

    asyncio.run(main())


def test_too_many_tokens_wait() -> None:
    async def main() -> None:
        admission = door(room=1, max_waiting_tokens=100)
        first, _ = await line_up(admission, "a", 1)
        second, _ = await line_up(admission, "a", 90)
        third = admission.knock("a", 1)
        with pytest.raises(ApiError, match="90 tokens of prompts wait already"):
            await third.wait(20, 1)
        third.leave()
        first.leave()
        second.leave()
        assert admission.waiting_tokens == 0
        assert admission.num_open == 0

    asyncio.run(main())


def test_a_full_server_says_429_before_any_200(directory: Path) -> None:
    gate = threading.Event()
    engine = FakeEngine(directory, runner=ChainRunner(lambda: gate.wait(LIMIT)))
    options = {"max_running_sequences": 1, "max_waiting_requests": 2, "status_seconds": 0.05}

    async def main() -> None:
        async with serving(directory, engine, **options) as client:
            body = {"prompt": "x", "max_tokens": 2, "stream": True}
            asked = []
            for number in range(1, 4):
                asked.append(asyncio.ensure_future(client.post("/v1/completions", json=body)))
                await until(partial(is_open, client.server.admission, number))
                await until(lambda: client.server.admission.num_inside == 1)
            refused = await client.post("/v1/completions", json=body)
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["type"] == "rate_limit_error"
            gate.set()
            for response in await asyncio.gather(*asked):
                assert response.status_code == 200
                assert events(response.text)
            assert client.server.admission.num_open == 0

    asyncio.run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_a_deadline_that_passes_ends_the_request(directory: Path, stream: bool) -> None:
    gate = threading.Event()
    engine = FakeEngine(directory, runner=ChainRunner(lambda: gate.wait(LIMIT)))

    async def main() -> None:
        async with serving(directory, engine, status_seconds=0.05) as client:
            body = {"prompt": "x", "max_tokens": 9, "stream": stream, "deadline_ms": 300}
            response = await client.post("/v1/completions", json=body)
            if stream:
                while response.status_code == 504:  # this machine stood still at the status line
                    response = await client.post("/v1/completions", json=body)
                assert response.status_code == 200
                error = events(response.text)[-1]["error"]
            else:
                assert response.status_code == 504
                error = response.json()["error"]
            assert error["code"] == "deadline_exceeded"
            assert re.fullmatch(r"the request was not done within \d+ ms", error["message"])
            gate.set()
            await until(lambda: not engine.core.scheduler.sequences)
            assert not client.server.active

    asyncio.run(main())


def test_nobody_is_served_by_an_engine_that_is_not_ready(directory: Path) -> None:
    engine = FakeEngine(directory, is_ready=False)

    async def main() -> None:
        async with serving(directory, engine) as client:
            for path in ("/health", "/health/ready"):
                assert (await client.get(path)).status_code == 503
            assert (await client.get("/health/live")).status_code == 200
            refused = await client.post("/v1/completions", json={"prompt": "x"})
            assert refused.status_code == 503
            assert refused.json()["error"]["code"] == "engine_not_ready"
            assert "retry-after" in refused.headers

    asyncio.run(main())


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_fails_in_the_engine_fails_alone(directory: Path, stream: bool) -> None:
    """And tells nothing of the engine's insides."""

    async def main() -> None:
        engine = FakeEngine(directory)
        engine.runner.poisoned.add("bad-")
        async with serving(directory, engine) as client:
            body = {"prompt": "x", "max_tokens": 5, "stream": stream}
            headers = {"x-request-id": "bad"}
            bad, good = await asyncio.gather(
                client.post("/v1/completions", json=body, headers=headers),
                client.post("/v1/completions", json=body),
            )
            assert bad.status_code == 500
            assert "SECRET" not in bad.text
            assert bad.json()["error"]["code"] == "engine_error"
            assert good.status_code == 200

    asyncio.run(main())
