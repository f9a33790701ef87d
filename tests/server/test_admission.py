"""The admission queue: limits, fairness between keys, deadlines, and the errors of rejections."""

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
from octavo.server.settings import ServerSettings
from tests.server.engine import ChainRunner, FakeEngine
from tests.server.make import LIMIT, events, serving, until


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def is_open(admission: Admission, number: int) -> bool:
    """Return whether `number` requests are registered."""
    return admission.num_open == number


def make_admission(clock: Clock | None = None, capacity: int = 2, **options: Any) -> Admission:
    reasons: list[str] = []
    config = ServerSettings(max_running_sequences=capacity, **options)
    admission = Admission(config, 64, clock or Clock(), reasons.append)
    admission.reasons = reasons  # type: ignore[attr-defined]
    return admission


async def enqueue(admission: Admission, owner: str, num_tokens: int, priority: int = 0) -> Any:
    """Return a ticket and the task that waits for its admission."""
    ticket = admission.register(owner, 10)
    task = asyncio.ensure_future(ticket.wait(num_tokens, 1, priority))
    await asyncio.sleep(0)
    return ticket, task


def test_no_more_sequences_are_admitted_than_the_capacity() -> None:
    async def main() -> None:
        admission = make_admission(capacity=2)
        entries = [await enqueue(admission, "a", 5) for _ in range(4)]
        await asyncio.sleep(0)
        assert [task.done() for _, task in entries] == [True, True, False, False]
        assert (admission.num_admitted, admission.num_waiting) == (2, 2)
        assert admission.waiting_tokens == 10
        entries[0][0].leave()
        entries[0][0].leave()
        await asyncio.sleep(0)
        assert [task.done() for _, task in entries] == [True, True, True, False]
        for ticket, task in entries:
            ticket.leave()
            task.cancel()
        assert admission.num_admitted == admission.num_waiting == admission.num_open == 0
        assert admission.waiting_tokens == admission.waiting_bytes == 0

    asyncio.run(main())


def test_a_key_with_many_requests_does_not_block_others() -> None:
    """The first request of a key is next, though nine of another key came earlier."""

    async def main() -> None:
        admission = make_admission(capacity=1)
        first, _ = await enqueue(admission, "greedy", 100)
        greedy = [await enqueue(admission, "greedy", 100) for _ in range(8)]
        modest, admitted = await enqueue(admission, "modest", 100)
        first.leave()
        await asyncio.sleep(0)
        assert admitted.done()
        assert not any(task.done() for _, task in greedy)
        modest.count_output(10_000)
        modest.leave()
        served = []
        again, _ = await enqueue(admission, "modest", 100)
        for _ in range(8):
            await asyncio.sleep(0)
            owner = next(t for t, task in greedy if task.done() and t not in served)
            served.append(owner)
            owner.leave()
        assert again.num_tokens == 100, "its earlier tokens count against it"
        again.leave()

    asyncio.run(main())


def test_a_pause_saves_nothing_up() -> None:
    async def main() -> None:
        admission = make_admission(capacity=1)
        busy, _ = await enqueue(admission, "busy", 50_000)
        waiting, _ = await enqueue(admission, "busy", 10)
        newcomer, _ = await enqueue(admission, "new", 10)
        assert admission._queues["new"].served == admission._queues["busy"].served
        for ticket in (busy, waiting, newcomer):
            ticket.leave()

    asyncio.run(main())


def test_the_lower_priority_of_a_key_is_first() -> None:
    async def main() -> None:
        admission = make_admission(capacity=1)
        first, _ = await enqueue(admission, "a", 1)
        later, late = await enqueue(admission, "a", 1, priority=5)
        sooner, soon = await enqueue(admission, "a", 1, priority=-5)
        first.leave()
        await asyncio.sleep(0)
        assert (soon.done(), late.done()) == (True, False)
        sooner.leave()
        later.leave()

    asyncio.run(main())


def test_a_full_queue_rejects_with_the_time_to_wait() -> None:
    async def main() -> None:
        clock = Clock()
        admission = make_admission(clock, 1, max_waiting_requests=3, max_waiting_bytes=100)
        tickets = [(await enqueue(admission, "a", 1))[0] for _ in range(4)]
        with pytest.raises(ApiError) as full:
            admission.register("b", 1)
        assert full.value.status == 429
        assert full.value.code == "queue_full"
        tickets.pop().leave()
        with pytest.raises(ApiError) as heavy:
            admission.register("b", 90)
        assert heavy.value.code == "bytes"
        for ticket in tickets:  # one a second
            clock.now += 1.0
            ticket.leave()
        assert admission.reasons == ["queue_full", "bytes"]  # type: ignore[attr-defined]

    asyncio.run(main())


def test_the_wait_is_estimated_from_how_fast_requests_end() -> None:
    async def main() -> None:
        clock = Clock()
        admission = make_admission(clock, 1, max_waiting_requests=9)
        assert admission.seconds_to_wait() == 0.0
        tickets: list[Ticket] = [(await enqueue(admission, "a", 1))[0] for _ in range(8)]
        for ticket in tickets[:4]:
            clock.now += 2.0
            ticket.leave()
            await asyncio.sleep(0)
        assert admission.num_waiting == 3
        assert admission.seconds_to_wait() == pytest.approx(4 * 6.0 / 4)
        admission.register("a", 1)
        with pytest.raises(ApiError) as late:
            admission.check_deadline(1.0)
        assert late.value.code == "deadline"
        assert dict(late.value.headers)[b"retry-after"] == b"8"
        admission.check_deadline(60.0)
        with pytest.raises(ApiError):
            admission.check_deadline(5.9)
        for ticket in tickets:
            ticket.leave()

    asyncio.run(main())


def test_too_many_waiting_tokens_reject_a_request() -> None:
    async def main() -> None:
        admission = make_admission(capacity=1, max_waiting_tokens=100)
        first, _ = await enqueue(admission, "a", 1)
        second, _ = await enqueue(admission, "a", 90)
        third = admission.register("a", 1)
        with pytest.raises(ApiError) as raised:
            await third.wait(20, 1)
        assert raised.value.code == "tokens"
        third.leave()
        first.leave()
        second.leave()
        assert admission.waiting_tokens == 0
        assert admission.num_open == 0

    asyncio.run(main())


def test_a_full_server_answers_429_before_any_200(directory: Path) -> None:
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
                await until(lambda: client.server.admission.num_admitted == 1)
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
                while response.status_code == 504:  # the machine stalled before the status line
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


def test_an_engine_that_is_not_ready_serves_no_request(directory: Path) -> None:
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
    """The error says nothing about the engine's internals."""

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
