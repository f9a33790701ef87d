"""The admission queue: limits, fairness between keys, deadlines, and the errors of rejections."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import threading
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from octavo.options.server import ServerSettings
from octavo.serving.admission import CLAIM_SECONDS, Admission, Ticket
from octavo.transport.errors import ApiError
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


async def refusal(admission: Admission, owner: str) -> str | None:
    """Return the code with which a request is refused, or None if it waits."""
    try:
        ticket, task = await enqueue(admission, owner, 1)
    except ApiError as error:
        return error.code
    ticket.leave()
    if task.done():
        refused = task.exception()
        assert isinstance(refused, ApiError)
        return refused.code
    task.cancel()
    return None


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


def test_as_many_are_admitted_as_the_engines_that_are_ready_can_have() -> None:
    async def main() -> None:
        admission = Admission(ServerSettings(), 4, Clock(), lambda reason: None)
        assert admission.capacity == 8  # a little more than four
        admission.resize(2)
        entries = [await enqueue(admission, "a", 5) for _ in range(20)]
        assert admission.num_admitted == 16
        admission.resize(3)
        await asyncio.sleep(0)
        assert all(task.done() for _, task in entries)
        for num_engines, capacity in ((1, 8), (0, 8), (2, 16)):
            admission.resize(num_engines)
            assert admission.capacity == capacity
        for ticket, _ in entries:
            ticket.leave()
        fixed = make_admission(capacity=2)
        fixed.resize(3)
        assert fixed.capacity == 2

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


def test_what_a_key_used_while_others_had_no_need_is_not_a_debt() -> None:
    async def main() -> None:
        admission = make_admission(capacity=2)
        modest, _ = await enqueue(admission, "modest", 1)
        for _ in range(20):
            alone, _ = await enqueue(admission, "busy", 1000)
            alone.count_output(1000)
            alone.leave()
            following, _ = await enqueue(admission, "modest", 1)  # it is never without a request
            modest.leave()
            modest = following
        running = [modest, (await enqueue(admission, "busy", 10))[0]]
        waiting = [(key, *await enqueue(admission, key, 10)) for key in ["modest", "busy"] * 8]
        served: Counter[str] = Counter()
        for _ in range(8):
            running.pop(0).leave()
            await asyncio.sleep(0)
            admitted = next(each for each in waiting if each[2].done())
            waiting.remove(admitted)
            running.append(admitted[1])
            served[admitted[0]] += 1
        assert served["busy"] >= 3, "it does not pay for what was free"
        for ticket in [*running, *(ticket for _, ticket, _ in waiting)]:
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


def test_a_key_that_fills_the_queue_makes_room_for_a_key_that_was_refused() -> None:
    async def main() -> None:
        clock = Clock()
        admission = make_admission(clock, 1, max_waiting_requests=8)
        greedy = [(await enqueue(admission, "greedy", 1))[0] for _ in range(9)]
        assert admission.num_waiting == 8, "alone it may use all places"
        with pytest.raises(ApiError):
            admission.register("modest", 1)
        greedy.pop().leave()
        with pytest.raises(ApiError):  # 8 waiting are more than three quarters and its share
            admission.register("greedy", 1)
        modest = admission.register("modest", 1)
        modest.leave()
        clock.now += CLAIM_SECONDS
        greedy.append(admission.register("greedy", 1))
        for ticket in greedy:
            ticket.leave()
        assert admission.num_waiting == admission.waiting_bytes == admission.num_open == 0

    asyncio.run(main())


@pytest.mark.parametrize(("limit", "size"), [("max_waiting_bytes", 10), ("max_waiting_tokens", 1)])
def test_bytes_and_tokens_are_shared_between_keys_too(limit: str, size: int) -> None:
    async def main() -> None:
        options: dict[str, Any] = {limit: 8 * size}
        admission = make_admission(capacity=1, **options)
        greedy = [(await enqueue(admission, "greedy", 1))[0] for _ in range(7)]
        modest = [(await enqueue(admission, "modest", 1))[0]]
        assert await refusal(admission, "greedy") == limit.rpartition("_")[2]
        modest.append((await enqueue(admission, "modest", 1))[0])
        for ticket in [*greedy, *modest]:
            ticket.leave()
        assert admission.waiting_bytes == admission.waiting_tokens == 0

    asyncio.run(main())


@pytest.mark.parametrize("greedy_share", [0.25, 0.7, 0.97])
def test_keys_have_equal_shares_of_an_overloaded_server(greedy_share: float) -> None:
    """One key sends most of ten times what is served; each of four gets a quarter."""

    async def main() -> None:
        chance = random.Random(1)
        clock = Clock()
        admission = make_admission(clock, 1, max_waiting_requests=32)
        owners = ["greedy", "a", "b", "c"]
        shares = [greedy_share, *([(1 - greedy_share) / 3] * 3)]
        arrivals = 10 if greedy_share < 0.9 else 150  # each modest key still asks for its share
        served: Counter[str] = Counter()
        running: tuple[str, Ticket] | None = None
        waiting: list[tuple[str, Ticket, asyncio.Task[None]]] = []
        for _ in range(1000):
            clock.now += 0.1
            for owner in chance.choices(owners, shares, k=arrivals):
                with contextlib.suppress(ApiError):
                    waiting.append((owner, *await enqueue(admission, owner, 10)))
            if running is not None:
                running[1].count_output(10)
                running[1].leave()
                await asyncio.sleep(0)
            admitted = next(each for each in waiting if each[2].done())
            waiting.remove(admitted)
            running = admitted[:2]
            served[running[0]] += 1
        assert all(230 <= served[owner] <= 270 for owner in owners), served

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
        async with serving(directory, engine, status_seconds=LIMIT) as client:
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
