"""The stages of an engine on the nodes of a Ray cluster, which are lost: `make test-ray`."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM
from octavo.client.errors import EngineStartError
from octavo.client.remote import ray_nodes
from octavo.client.remote.nodes import further_node
from octavo.env import child_environment
from octavo.options.engine import EngineArguments
from tests.api.tiny import make_model
from tests.client.clients import patient
from tests.nodes.running import MEMBER_PROGRAM, exists, free_port
from tests.ranks.followers import KIND, SAMPLING, followers_of
from tests.ranks.small import TIGHT, write
from tests.serve_ray.cluster import SECONDS, Nodes, nodes, wait_for

STREAMS = 50
PROMPTS = [[3 + (7 * i + j) % 90 for j in range(4 + i % 6)] for i in range(STREAMS)]
TWO: dict[str, Any] = {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Nodes]:
    """Return two nodes, to which a test adds another before it loses one."""
    with nodes() as made:
        yield made


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("model"), KIND)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    """Return the tokens of one engine in this process."""
    with LLM(str(model), **TIGHT) as alone:
        outputs = alone.generate(PROMPTS, SAMPLING, use_tqdm=False)
    return [list(each.outputs[0].token_ids) for each in outputs]


def actors(cluster: Nodes) -> dict[int, str]:
    """Return the processes of the actors, with the node of each."""
    return cluster.pids("_Node")


class Server:
    """An engine whose second stage Ray has placed."""

    def __init__(self, model: Path, **options: Any) -> None:
        given = {**TIGHT, **TWO, "master_port": free_port(), **options}
        self.llm = AsyncLLM(str(model), engine="process", **given, timing=patient())
        client: Any = self.llm._client
        self.engine = client.engines[0]

    async def streams(self, lose: Any) -> list[list[int]]:
        """Return the tokens of all prompts; something is lost once all streams have some."""
        seen: set[int] = set()
        all_seen = asyncio.Event()

        async def one(index: int) -> list[int]:
            async for output in self.llm.generate(PROMPTS[index], SAMPLING):
                seen.add(index)
                if len(seen) >= TIGHT["max_num_seqs"]:  # the others wait in the engine
                    all_seen.set()
                last = output
            return list(last.outputs[0].token_ids)

        asked = [asyncio.ensure_future(one(index)) for index in range(STREAMS)]
        await all_seen.wait()
        deaths = self.engine.vitals.num_deaths
        began = time.monotonic()
        await asyncio.to_thread(lose)
        while self.engine.vitals.num_deaths == deaths:
            await asyncio.sleep(0.01)
        print(f"seen after {time.monotonic() - began:.2f} s")
        while not self.engine.is_ready:
            await asyncio.sleep(0.01)
        print(f"another engine is ready after {time.monotonic() - began:.2f} s")
        return await asyncio.gather(*asked)


@pytest.mark.parametrize("ranks", [1, 2])
def test_answers_are_those_of_one_process(cluster: Nodes, model: Path, ranks: int) -> None:
    options = {**TWO, "tensor_parallel_size": ranks, "master_port": free_port()}
    prompts = [[4, 5, 6], PROMPTS[7], PROMPTS[20]]
    with LLM(str(model), **{**TIGHT, **options}) as llm:
        assert [*actors(cluster).values()] == [cluster.second_id]
        outputs = llm.generate(prompts, SAMPLING, use_tqdm=False)
    with LLM(str(model), **TIGHT) as alone:
        wanted = alone.generate(prompts, SAMPLING, use_tqdm=False)
    found = [[each.outputs[0].token_ids for each in some] for some in (outputs, wanted)]
    assert found[0] == found[1]
    check_freed(cluster)


def check_freed(cluster: Nodes) -> None:
    wait_for(lambda: not actors(cluster), "no actor is left")
    wait_for(lambda: cluster.num_groups() == 0, "no place is kept")
    wait_for(cluster.is_free, "all processors are free")


def test_nothing_is_lost_with_a_stage_an_actor_an_engine_or_a_node(
    cluster: Nodes, model: Path, expected: list[list[int]]
) -> None:
    third = cluster.add()
    server = Server(model)

    def kill_stage() -> None:
        ((actor, _),) = actors(cluster).items()
        os.kill(followers_of(actor, MEMBER_PROGRAM)[0], signal.SIGKILL)

    def kill_actor() -> None:
        (actor,) = actors(cluster)
        os.kill(actor, signal.SIGKILL)

    def kill_engine() -> None:
        os.kill(server.engine.supervisor.run.process.engine.popen.pid, signal.SIGKILL)

    def lose_node() -> None:
        ((_, node),) = actors(cluster).items()
        assert node in (third, cluster.second_id)
        cluster.lose(node)

    async def world() -> None:
        for lose in (kill_stage, kill_actor, kill_engine, lose_node):
            print(lose.__name__)
            assert await server.streams(lose) == expected
            assert cluster.num_groups() == 1

    try:
        asyncio.run(world())
        ((actor, node),) = actors(cluster).items()
        assert node in cluster.further_ids()
        stages = followers_of(actor, MEMBER_PROGRAM)
        assert len(stages) == 1
    finally:
        server.llm.close()
    check_freed(cluster)
    wait_for(lambda: not any(map(exists, stages)), "no stage is left")


def test_a_cluster_without_room_is_one_error(cluster: Nodes, model: Path) -> None:
    wait_for(lambda: cluster.num_nodes() == 2, "Ray knows of the node that was lost")
    options = {**TWO, "pipeline_parallel_size": 3, "nnodes": 3, "ray_placement_seconds": 3.0}
    with pytest.raises(EngineStartError, match=r"no room for 3 nodes .* 2 machines"):
        LLM(str(model), **TIGHT, **options, master_port=free_port())
    check_freed(cluster)


def test_a_machine_that_lacks_the_model_is_one_error(
    cluster: Nodes, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two nodes have the same files in truth, so one of them gets another name."""

    def elsewhere(first: EngineArguments, rank: int) -> EngineArguments:
        return replace(further_node(first, rank), model="/no/such/model")

    monkeypatch.setattr(ray_nodes, "further_node", elsewhere)
    with pytest.raises(EngineStartError, match=r"node 1 \(\S+\): .*/no/such/model"):
        LLM(str(model), **TIGHT, **TWO, master_port=free_port())
    check_freed(cluster)


def test_nodes_may_share_a_machine_where_that_is_asked_for(cluster: Nodes, model: Path) -> None:
    options = {**TWO, "ray_placement": "pack", "master_port": free_port()}
    with LLM(str(model), **TIGHT, **options) as llm:
        assert [*actors(cluster).values()] != [cluster.second_id]
        assert llm.generate([[4, 5, 6]], SAMPLING, use_tqdm=False)
    check_freed(cluster)


def test_a_server_that_is_killed_leaves_nothing(cluster: Nodes, tmp_path: Path) -> None:
    port, model = free_port(), make_model(tmp_path)
    words = ["octavo", "serve", str(model), "-pp", "2", "--distributed-executor-backend", "ray"]
    words += ["--port", str(port), "--master-port", str(free_port()), "--num-threads", "1"]
    environment = child_environment({"RAY_ADDRESS": cluster.address})
    server = subprocess.Popen([sys.executable, "-m", *words], env=environment)
    try:
        wait_for(lambda: is_served(port), "the server is ready")
        ((actor, _),) = actors(cluster).items()
        stages = followers_of(actor, MEMBER_PROGRAM)
    finally:
        server.kill()
        server.wait()
    check_freed(cluster)
    wait_for(lambda: not any(map(exists, stages)), "no stage is left")


def is_served(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=SECONDS) as found:
            return bool(found.status == 200)
    except OSError:
        return False
