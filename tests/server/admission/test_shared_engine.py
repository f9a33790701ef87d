"""Admission before an engine that shares itself among keys: what each key finds free."""

from __future__ import annotations

import asyncio
from collections.abc import ValuesView
from typing import Any

import pytest

from octavo.options.server import ServerSettings
from octavo.serving.admission import Admission
from octavo.transport.errors import ApiError
from tests.server.admission.test_queue import Clock, enqueue


def shared_admission(capacity: int, **options: Any) -> Admission:
    """Return a queue before an engine that shares itself among the keys."""
    reasons: list[str] = []
    config = ServerSettings(max_running_sequences=capacity, **options)
    return Admission(config, 64, Clock(), reasons.append, is_shared=True)


async def settled(entries: list[Any]) -> list[bool]:
    """Return which requests have been admitted."""
    await asyncio.sleep(0)
    return [task.done() for _, task in entries]


def test_a_key_with_nothing_in_the_engine_does_not_wait_for_one_that_fills_it() -> None:
    async def main() -> None:
        admission = shared_admission(4)
        many = [await enqueue(admission, "a", 5) for _ in range(10)]
        assert await settled(many) == [True] * 4 + [False] * 6
        few = [await enqueue(admission, "b", 5) for _ in range(5)]
        assert await settled(few) == [True] * 2 + [False] * 3, "half of the capacity is its part"
        third = [await enqueue(admission, "c", 5)]
        assert await settled(third) == [True]
        assert await settled(many) == [True] * 4 + [False] * 6
        assert admission.num_admitted == 7
        assert sorted(admission.by_owner()) == [("a", 4, 6), ("b", 2, 3), ("c", 1, 0)]
        for ticket, _ in [*many, *few, *third]:
            ticket.leave()
        assert (admission.num_admitted, admission.num_waiting) == (0, 0)

    asyncio.run(main())


def test_requests_in_the_background_take_no_place_from_others() -> None:
    async def main() -> None:
        admission = shared_admission(4, max_waiting_requests=20)
        tickets = []
        for _ in range(15):
            ticket = admission.register("a", 10, is_background=True)
            tickets.append((ticket, asyncio.ensure_future(ticket.wait(5, 1))))
        assert (await settled(tickets)).count(True) == 3
        more = [admission.register("a", 10, is_background=True) for _ in range(3)]
        with pytest.raises(ApiError) as refused:
            admission.register("a", 10, is_background=True)
        assert refused.value.code == "queue_full"
        for ticket in more:
            ticket.leave()
        others = [await enqueue(admission, "a", 5) for _ in range(4)]
        assert await settled(others) == [True] * 4
        tickets[0][0].leave()
        assert (await settled(tickets)).count(True) == 3, "none follows while others fill it"
        for ticket, task in [*tickets, *others]:
            task.cancel()
            ticket.leave()

    asyncio.run(main())


def test_one_of_several_keys_never_fills_all_waiting_places() -> None:
    """The last quarter is kept even while no other key is there."""

    async def main() -> None:
        admission = shared_admission(1, max_waiting_requests=8, api_keys=("k" * 32, "l" * 32))
        admission.hold()
        codes = [await refusal_of_one_more(admission, "a") for _ in range(7)]
        assert codes == [None] * 6 + ["queue_full"]
        assert await refusal_of_one_more(admission, "b") is None

    asyncio.run(main())


async def refusal_of_one_more(admission: Admission, owner: str) -> str | None:
    """Return the code with which another request is refused, or None if it waits now."""
    try:
        admission.register(owner, 10)
    except ApiError as error:
        return error.code
    return None


def test_the_work_of_an_end_grows_no_faster_than_the_number_of_keys() -> None:
    class Counted(dict[str, Any]):
        """The queues of keys, which count how many of them were looked at."""

        num_seen = 0

        def __getitem__(self, key: str) -> Any:
            self.num_seen += 1
            return super().__getitem__(key)

        def values(self) -> ValuesView[Any]:  # type: ignore[override]
            return ValuesView(self)

    async def seen(num_keys: int) -> int:
        config = ServerSettings(max_running_sequences=4, max_waiting_requests=10_000)
        admission = Admission(config, 64, Clock(), lambda reason: None, is_shared=True)
        pairs = [
            await enqueue(admission, f"key {number % num_keys}", 1)
            for number in range(3 * num_keys)
        ]
        queues = admission._queues = Counted(admission._queues)
        for ticket, _ in pairs[:5]:
            ticket.leave()
        for _, task in pairs:
            task.cancel()
        await asyncio.gather(*(task for _, task in pairs), return_exceptions=True)
        return queues.num_seen

    few, many = asyncio.run(seen(20)), asyncio.run(seen(80))
    assert few
    assert many < 6 * few
