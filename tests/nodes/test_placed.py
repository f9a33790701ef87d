"""Nodes that are placed anew for each engine (`--distributed-executor-backend ray`)."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM
from octavo.client.errors import EngineStartError
from octavo.client.remote import ray_nodes
from octavo.client.remote.nodes import first_node, further_node
from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments, read_arguments
from octavo.wire.message_types import pack, unpack
from tests.nodes.placed import Places
from tests.nodes.running import LOCAL_HOST, exists, free_port
from tests.nodes.test_deaths import Server, expected_of
from tests.ranks.followers import KIND, wait_until
from tests.ranks.small import TIGHT, write

TWO: dict[str, Any] = {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    made = Places()
    monkeypatch.setattr(ray_nodes, "ray_nodes_launcher", made.launcher)
    return made


@pytest.mark.slow
def test_streams_continue_on_nodes_that_are_placed_anew(tmp_path: Path, places: Places) -> None:
    model = write(tmp_path, KIND)
    expected = expected_of(model)
    server = Server(model, {**TWO, "tensor_parallel_size": 2, "master_port": free_port()})

    async def kill_stage() -> None:
        os.kill(places.groups[-1].stages_of(1)[0], signal.SIGKILL)

    async def kill_node() -> None:
        (stage,) = places.groups[-1].stages_of(1)
        places.groups[-1].programs[1].kill()
        await asyncio.to_thread(wait_until, lambda: not exists(stage))

    async def kill_engine() -> None:
        os.kill(server.engine(), signal.SIGKILL)

    async def world() -> None:
        for number, kill in enumerate((kill_stage, kill_node, kill_engine), 1):
            assert await server.streams(kill) == expected
            await server.restarted(number)
            assert len(places.groups) == number + 1
            assert [each.is_closed for each in places.groups] == [True] * number + [False]
        places.groups[-1].programs[1].kill()  # nothing is computed now
        await server.restarted(4)

    try:
        asyncio.run(world())
        (stage,) = places.groups[-1].stages_of(1)
        assert_hidden(places.first, stage, places.groups[-1].programs[1].pid, server.engine())
    finally:
        server.llm.close()
    assert all(each.is_closed for each in places.groups)
    wait_until(lambda: not exists(stage))


def assert_hidden(first: EngineArguments | None, *pids: int) -> None:
    """Check that the secret is in no command line, no environment and no text of the settings."""
    assert first is not None
    assert first.link_secret is not None
    assert len(first.link_secret) == 32
    for pid in pids:
        for name in ("cmdline", "environ"):
            seen = Path(f"/proc/{pid}/{name}").read_bytes()
            assert first.link_secret not in seen
            assert first.link_secret.hex().encode() not in seen
    assert "link_secret=" not in repr(first)


def test_a_cluster_without_room_ends_the_start_with_its_reason(
    tmp_path: Path, places: Places
) -> None:
    places.refusal = "there is no room for 2 nodes"
    with pytest.raises(EngineStartError, match="there is no room for 2 nodes"):
        LLM(str(write(tmp_path, KIND)), **TIGHT, **TWO, master_port=free_port())
    assert [each.is_closed for each in places.groups] == [True]


@pytest.mark.slow
def test_a_node_that_cannot_run_ends_the_start_with_its_reason(
    tmp_path: Path, places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(tmp_path, KIND)
    place = places.launcher

    def launcher(arguments: EngineArguments) -> Any:
        found, first = place(arguments)
        monkeypatch.setattr("tests.nodes.placed.further_node", elsewhere)
        return found, first

    def elsewhere(first: EngineArguments, rank: int) -> EngineArguments:
        return EngineArguments(
            "/no/such/model",
            pipeline_parallel_size=2,
            nnodes=2,
            node_rank=rank,
            headless=True,
            master_port=first.master_port,
        )

    monkeypatch.setattr(ray_nodes, "ray_nodes_launcher", launcher)
    with pytest.raises(EngineStartError, match=r"node 1 \(\S+\): .*/no/such/model"):
        LLM(str(model), **TIGHT, **TWO, master_port=free_port())


@pytest.mark.slow
def test_answers_are_those_of_one_process(tmp_path: Path, places: Places) -> None:
    """LLM's engine is in a process of its own then, which is found by the same option."""
    model = write(tmp_path, KIND)
    with LLM(str(model), **TIGHT) as llm:
        alone = llm.generate([[5, 6, 7]], use_tqdm=False)
    with LLM(str(model), **TIGHT, **TWO, master_port=free_port()) as llm:
        found = llm.generate([[5, 6, 7]], use_tqdm=False)
    assert found[0].outputs[0].token_ids == alone[0].outputs[0].token_ids


def test_machines_that_cannot_be_reached_are_found_before_ray_knows_it() -> None:
    with socket.create_server((LOCAL_HOST, 0)) as listening:
        machines = [
            {"NodeID": name, "NodeManagerAddress": LOCAL_HOST, "NodeManagerPort": port}
            for name, port in (("a", free_port()), ("b", listening.getsockname()[1]))
        ]
        assert ray_nodes.unreachable(machines) == ["a"]
        assert ray_nodes.unreachable([]) == []


# settings


def test_each_stage_has_a_machine_unless_nnodes_says_otherwise() -> None:
    assert read_arguments("m", TWO).nnodes == 2
    four = {**TWO, "pipeline_parallel_size": 4}
    assert read_arguments("m", four).nnodes == 4
    assert read_arguments("m", {**four, "nnodes": 2}).nnodes == 2
    ranks = read_arguments("m", {**TWO, "tensor_parallel_size": 2})
    assert (ranks.nnodes, ranks.tensor_parallel_size) == (2, 2)
    assert ranks.needs_processes


def test_the_first_node_has_an_address_a_secret_and_whole_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "secret").write_text("a secret of the tests, which is long enough")
    monkeypatch.chdir(tmp_path)
    asked = read_arguments("model", {**TWO, "engine_cpus": 4, "ray_placement_seconds": 5})
    first = first_node(asked, "10.0.0.1")
    assert (first.model, first.master_addr) == (str(tmp_path / "model"), "10.0.0.1")
    assert (first.distributed_executor_backend, first.nnodes, first.node_rank) == ("mp", 2, 0)
    assert first.link_secret not in (None, first_node(asked, "10.0.0.1").link_secret)
    other = further_node(first, 1)
    assert unpack(pack(other), EngineArguments) == other
    assert (other.node_rank, other.headless) == (1, True)
    assert other.link_secret == first.link_secret
    # With a file that all machines have, nothing secret is sent.
    own = first_node(read_arguments("org/name", {**TWO, "link_secret_file": "secret"}), "10.0.0.1")
    assert (own.model, own.link_secret) == ("org/name", None)
    assert own.link_secret_file == str(tmp_path / "secret")
    # Another address of this machine may be given.
    named = read_arguments("m", {**TWO, "master_addr": "10.1.1.1"})
    assert first_node(named, "10.0.0.1").master_addr == "10.1.1.1"


PACK = {**TWO, "ray_placement": "pack"}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"distributed_executor_backend": "ray"}, "give pipeline_parallel_size"),
        ({"distributed_executor_backend": "ray", "tensor_parallel_size": 2}, "on one machine"),
        ({"distributed_executor_backend": "external_launcher"}, "must be one of mp, uni, ray"),
        ({**TWO, "data_parallel_size": 2}, "octavo route"),
        ({**TWO, "data_parallel_backend": "ray"}, "leave one of them out"),
        ({**TWO, "pipeline_parallel_size": 3, "nnodes": 2}, "equal numbers of stages"),
        ({**TWO, "node_rank": 1, "headless": True}, "start one server"),
        ({**TWO, "headless": True}, "start one server"),
        ({**TWO, "master_addr": "0.0.0.0"}, "no address to connect to"),
        ({**TWO, "ray_placement": "spread"}, "strict_spread, pack"),
        (PACK, "num_threads and kv_cache_memory_bytes"),
        ({**PACK, "num_threads": 1}, "num_threads and kv_cache_memory_bytes"),
        ({"ray_placement": "pack"}, "distributed_executor_backend=ray"),
        ({"ray_placement_seconds": 5.0}, "distributed_executor_backend=ray"),
        ({"pipeline_parallel_size": 2, "engine_cpus": 2}, "distributed_executor_backend=ray"),
        ({**TWO, "enable_lora": True}, "enable_lora with pipeline_parallel_size=2"),
    ],
)
def test_what_cannot_be_placed_is_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        read_arguments("m", given)


@pytest.mark.parametrize(
    "given",
    [
        {"distributed_executor_backend": "mp"},
        {"distributed_executor_backend": "uni"},
        {"distributed_executor_backend": None},
        {"distributed_executor_backend": "ray", "data_parallel_backend": "ray"},
        {**PACK, "num_threads": 1, "kv_cache_memory_bytes": 1 << 20},
        {**PACK, "num_threads": 1, "num_gpu_blocks_override": 9},
        {**TWO, "engine_cpus": 4, "master_addr": "10.0.0.1", "link_secret_file": "/secret"},
    ],
)
def test_what_can_be_placed_is_taken(given: dict[str, Any]) -> None:
    read_arguments("m", given)


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'octavo\[ray\]'"):
        LLM("a-model", **TWO)


def test_an_engine_in_this_process_has_no_nodes_on_ray(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use engine='process'"):
        AsyncLLM(str(write(tmp_path, KIND)), engine="inline", **TWO)
