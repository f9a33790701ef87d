"""Nodes in two network namespaces, over a slow, lossy or cut cable: `make test-ranks`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nodes.cable import Cable, laid_cable
from tests.nodes.running import Nodes
from tests.nodes.test_deaths import Server, expected_of
from tests.ranks.followers import KIND
from tests.ranks.small import answers, write


@pytest.fixture
def cable() -> Iterator[Cable]:
    with laid_cable() as laid:
        yield laid


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write(tmp_path, KIND)


@pytest.fixture
def others(cable: Cable, model: Path, tmp_path: Path) -> Iterator[Nodes]:
    """Return a node at the other end of the cable."""
    made = Nodes(model, tmp_path, 2, 2, cable.hosts[0])
    made.start(1, prefix=cable.prefix(1))
    yield made
    made.end()


# Queues this short lose packets of each prompt, which come late for want of room, too.
SHAPES = {
    "a delay and loss": "netem delay 10ms 5ms loss 3%",
    "a narrow cable that loses packets": "tbf rate 8mbit burst 2k limit 3k",
}


@pytest.mark.parametrize("shape", SHAPES)
def test_bits_are_equal_over_a_bad_cable(
    cable: Cable, others: Nodes, model: Path, shape: str
) -> None:
    cable.shape(SHAPES[shape])
    with cable.inside(0):
        found, _ = answers(model, **others.options)
    assert found == answers(model)[0]
    assert cable.num_dropped() > 0


@pytest.mark.parametrize("is_idle", [False, True])
def test_streams_continue_when_a_cable_was_cut(
    cable: Cable, others: Nodes, model: Path, is_idle: bool
) -> None:
    """Each end notices it, in a time that is bounded, and both meet again when it is mended."""
    expected = expected_of(model)

    async def world(server: Server) -> None:
        run = server.supervisor.run

        async def cut() -> None:
            cable.cut()
            while server.supervisor.run is run:  # the first engine has ended
                await asyncio.sleep(0.01)
            await asyncio.to_thread(others.wait_for_log, 1, "has ended; it joins the next one")
            await asyncio.to_thread(others.wait_for_log, 1, "cannot join")
            cable.mend()

        async def nothing() -> None:
            pass

        if is_idle:
            assert await server.streams(nothing) == expected
            await cut()
        assert await server.streams(nothing if is_idle else cut) == expected
        await server.restarted(1)

    with cable.inside(0):
        server = Server(model, others.options)
        try:
            asyncio.run(world(server))
        finally:
            server.llm.close()
