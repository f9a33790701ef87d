"""The places of calls, messages and watches: how many there are, and who gets the next one."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from octavo.dialects.grpc.places import CallPlaces, MessagePlaces, OpenPlaces
from octavo.options.server import ServerSettings
from octavo.transport.errors import ApiError


def test_calls_are_limited_in_all_for_a_client_and_for_a_key() -> None:
    config = ServerSettings(
        max_connections=8, max_connections_per_client=3, api_keys=("first", "other")
    )
    places = CallPlaces(config)
    with contextlib.ExitStack() as stack:

        def enter(key: str, client: str) -> str | None:
            try:
                stack.enter_context(places.place(key, client))
            except ApiError as error:
                return error.code
            return None

        assert [enter("a", "1.1.1.1") for _ in range(4)] == [None, None, None, "too_many_calls"]
        assert [enter("a", "2.2.2.2") for _ in range(2)] == [None, "too_many_calls"]  # half of 8
        assert [enter("b", "1.1.1.1"), enter("b", "3.3.3.3")] == ["too_many_calls", None]
        assert places.num_open == 5
    assert places.num_open == 0
    with contextlib.ExitStack() as stack:
        assert [enter("b", "1.1.1.1") for _ in range(3)] == [None] * 3


def test_one_key_has_all_calls_where_there_is_no_other() -> None:
    places = CallPlaces(ServerSettings(max_connections=3, api_keys=("only",)))
    with contextlib.ExitStack() as stack:
        for number in range(3):
            stack.enter_context(places.place("a", f"1.1.1.{number}"))
        with pytest.raises(ApiError):
            stack.enter_context(places.place("a", "1.1.1.9"))


async def settled() -> None:
    """Let all tasks run until they wait."""
    for _ in range(20):
        await asyncio.sleep(0)


def test_messages_that_arrive_share_their_places_between_keys() -> None:
    async def main() -> None:
        places = MessagePlaces(8)  # of which one key has two
        inside: list[str] = []
        gates: dict[str, asyncio.Event] = {}

        async def hold(name: str) -> None:
            async with places.place(name[0]):
                inside.append(name)
                await gates.setdefault(name, asyncio.Event()).wait()
                inside.remove(name)

        tasks = {}
        for owner in "abcde":
            for number in "123":
                tasks[owner + number] = asyncio.create_task(hold(owner + number))
        await settled()
        assert sorted(inside) == ["a1", "a2", "b1", "b2", "c1", "c2", "d1", "d2"]
        tasks["b3"].cancel()  # one that waits for its own key
        tasks["e1"].cancel()  # one that waits for the others
        gates["b1"].set()  # whose key waits no more
        await settled()
        assert "e2" in inside  # the other keys that wait have their share
        gates["a1"].set()
        await settled()
        assert "a3" in inside
        for name in tasks:
            gates.setdefault(name, asyncio.Event()).set()
        await asyncio.gather(*tasks.values(), return_exceptions=True)
        assert not inside
        assert places._num_free == 8
        assert not places._taken
        assert not places._waiting

    asyncio.run(main())


def test_a_place_that_comes_as_its_caller_leaves_goes_to_the_next() -> None:
    async def main() -> None:
        places = MessagePlaces(1)
        gate = asyncio.Event()
        order: list[str] = []

        async def hold(name: str) -> None:
            async with places.place(name):
                order.append(name)
                await gate.wait()

        first, second, third = [asyncio.create_task(hold(name)) for name in "abc"]
        await settled()
        gate.set()
        await asyncio.sleep(0)  # the first leaves, and the second has the place
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(first, second, third, return_exceptions=True)
        assert order[-1] == "c"
        again = asyncio.create_task(hold("d"))
        await settled()
        second, third = [asyncio.create_task(hold(name)) for name in "ef"]
        await again
        await asyncio.gather(second, third)
        assert places._num_free == 1

    asyncio.run(main())


def test_places_without_a_key_go_from_the_client_with_most_to_the_newest() -> None:
    async def main() -> None:
        places = OpenPlaces(3)
        ended: list[str] = []

        async def hold(client: str, name: str) -> None:
            try:
                async with places.place(client, None):
                    await asyncio.Event().wait()
            except TimeoutError:
                ended.append(name)

        tasks = []
        for client, name in [("x", "x1"), ("y", "y1"), ("x", "x2"), ("z", "z1"), ("x", "x3")]:
            tasks.append(asyncio.create_task(hold(client, name)))
            await settled()
        assert ended == ["x1", "x2"]
        assert places.num_taken == 3
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert places.num_taken == 0

    asyncio.run(main())
