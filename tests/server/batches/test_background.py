"""The server's own requests are admitted into what is free, behind the requests of all clients."""

from __future__ import annotations

import asyncio
from typing import Any

from octavo.serving.admission import Admission, Ticket
from tests.server.admission.test_queue import enqueue, make_admission


def begin(admission: Admission, owner: str, num_tokens: int) -> tuple[Ticket, asyncio.Task[None]]:
    """Return a ticket of a batch and the task that waits for its admission."""
    ticket = admission.register(owner, 10, is_background=True)
    return ticket, asyncio.ensure_future(ticket.wait(num_tokens, 1))


def run(test: Any) -> None:
    asyncio.run(test())


def test_batches_leave_a_quarter_of_the_places_free() -> None:
    async def test() -> None:
        admission = make_admission(capacity=8)
        tickets = []
        while admission.has_background_room():
            tickets.append(begin(admission, "a", 5)[0])
            await asyncio.sleep(0)
        assert len(tickets) == 6
        rooms: list[bool] = []
        admission.on_room = lambda: rooms.append(admission.has_background_room())
        _, client = await enqueue(admission, "a", 5)
        assert client.done()
        tickets[0].leave()
        tickets[1].leave()
        assert rooms == [False, True]

    run(test)


def test_a_client_goes_before_batches_and_loses_nothing_by_them() -> None:
    async def test() -> None:
        admission = make_admission(capacity=1)
        first, _ = begin(admission, "a", 1_000_000)  # much, for the key of a client
        await asyncio.sleep(0)
        second, batch = begin(admission, "b", 1)
        await asyncio.sleep(0)
        busy, other = await enqueue(admission, "c", 10)
        own, client = await enqueue(admission, "a", 1)
        assert not admission.has_background_room()
        first.leave()
        await asyncio.sleep(0)
        assert [other.done(), client.done(), batch.done()] == [True, False, False]
        busy.leave()
        await asyncio.sleep(0)
        assert [client.done(), batch.done()] == [True, False]
        own.leave()
        await asyncio.sleep(0)
        assert batch.done()
        second.leave()
        assert admission.has_background_room()

    run(test)
