"""Engines that Ray places on two nodes, which lose engines, actors and a node: `make test-ray`.

The engine is the fake one, whose tokens are hashes: that none is lost, repeated or changed is seen.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.client.process import ProcessClient, make_client
from octavo.client.remote.launcher import RemoteLauncher
from octavo.client.remote.ray_agent import RayAgents
from octavo.options.engine import EngineArguments
from tests.client.clients import FACTORY, Caller, check, eventually, patient, request, run
from tests.serve_ray.cluster import Nodes, nodes

STREAMS = 50
SECRET = b"a secret of the tests, which no other test has\n"


@pytest.fixture(scope="module")
def two() -> Iterator[Nodes]:
    with nodes() as made:
        yield made


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return path


@pytest.fixture
def client(two: Nodes, secret: Path) -> Iterator[ProcessClient]:
    agents = RayAgents(1, secret, FACTORY)
    launchers = [RemoteLauncher(agents.start, "127.0.0.1", SECRET.strip()) for _ in range(2)]
    timing = patient(restart_delay_seconds=0.01)
    made = make_client(EngineArguments(model="fake?step=0.004"), launchers, timing)
    try:
        made.start()
        yield made
    finally:
        made.close()


def agents_of(two: Nodes) -> dict[int, str]:
    """Return the processes of the agents, with the node of each."""
    return two.pids("_Actor")


@pytest.mark.parametrize("what", ["engine", "actor", "node"])
def test_what_is_lost_is_continued_elsewhere(two: Nodes, client: ProcessClient, what: str) -> None:
    """No token is lost, repeated or changed, and another engine is started."""
    places = agents_of(two)
    assert len(set(places.values())) == 2, "Ray has placed both engines on one node"

    async def world() -> None:
        caller = Caller(client)
        requests = [request(f"r{index}", [index, 1], max_tokens=400) for index in range(STREAMS)]
        caller.send(*requests)
        await caller.until(lambda: all(caller.tokens.values()))
        began = time.monotonic()
        second = next(pid for pid, node in places.items() if node == two.second_id)
        if what == "engine":
            os.kill(_child_of(second), signal.SIGKILL)
        elif what == "actor":
            os.kill(second, signal.SIGKILL)
        else:
            two.lose_second()
        await eventually(lambda: sum(each.vitals.num_deaths for each in client.members) == 1)
        print(f"{what}: seen after {time.monotonic() - began:.2f} s")
        await caller.all_ended()
        check(caller, *requests)
        await eventually(lambda: all(each.is_ready for each in client.members))
        print(f"{what}: another is ready after {time.monotonic() - began:.2f} s")

    run(world)


def _child_of(pid: int) -> int:
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
            command: Any = (entry.parent / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == pid and b"octavo.engine.process" in command:
            found.append(int(entry.parent.name))
    (child,) = found
    return child
