"""vLLM's flags for engines behind a balancer: which engines a server has, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from octavo.cli.engine_options import add_engine_options, engine_options
from octavo.cli.parsing import Parser
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import make_client
from octavo.core.config import ConfigError
from octavo.core.snapshot import EngineSnapshot
from octavo.observe.metrics import Metrics
from octavo.options.engine import EngineArguments, read_arguments
from tests.client.clients import FACTORY, Caller, patient, request, run
from tests.observe.test_metrics import NoQueue


def own(**options: Any) -> tuple[int, int]:
    """Return the number of the first engine, and how many the server has."""
    given = {f"data_parallel_{name}": value for name, value in options.items()}
    arguments = read_arguments("m", given)
    return arguments.first_engine, arguments.data_parallel_size


def test_a_server_has_one_engine_of_all_or_several() -> None:
    assert own(size=4) == (0, 4)
    assert own(size=4, rank=3) == own(size=4, rank=3, external_lb=True) == (3, 1)
    assert own(size=4, rank=0, size_local=1, start_rank=0) == (0, 1)
    assert own(size=4, hybrid_lb=True, size_local=2) == (0, 2)
    assert own(size=4, hybrid_lb=True, size_local=2, start_rank=2) == (2, 2)
    assert own(size=4, size_local=4, start_rank=0, hybrid_lb=False) == (0, 4)
    assert own(size=4, rank=1, address="10.0.0.1", rpc_port=13345) == (1, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"external_lb": True},
        {"rank": 4},
        {"rank": -1},
        {"rank": "two"},
        {"rank": True},
        {"rank": 1, "size_local": 2},
        {"rank": 1, "start_rank": 2},
        {"rank": 1, "hybrid_lb": True},
        {"external_lb": True, "hybrid_lb": True},
        {"external_lb": "yes", "rank": 1},
        {"hybrid_lb": True},
        {"hybrid_lb": True, "size_local": 3, "start_rank": 2},
        {"hybrid_lb": True, "size_local": 0},
        {"size_local": 2},
        {"start_rank": 2},
        {"address": "10.0.0.1"},
        {"rpc_port": 13345, "size_local": 4},
        {"size": 0, "rank": 0},
    ],
)
def test_what_contradicts_itself_or_needs_other_machines_is_refused(
    options: dict[str, Any],
) -> None:
    with pytest.raises(ConfigError, match="data_parallel_"):
        own(**{"size": 4, **options})


@pytest.mark.parametrize(
    ("words", "right"),
    [
        (["--data-parallel-rank", "1"], (1, 1)),
        (["-dpn", "1", "-dpe", "-dpa", "here", "-dpp", "5"], (1, 1)),
        (["-dph", "-dpl", "1", "-dpr", "1"], (1, 1)),
        (["--data-parallel-hybrid-lb", "--data-parallel-size-local", "2"], (0, 2)),
    ],
)
def test_the_flags_are_those_of_vllm(words: list[str], right: tuple[int, int]) -> None:
    parser = Parser(prog="octavo")
    add_engine_options(parser)
    arguments = parser.parse_args(["-dp", "2", *words])
    found = read_arguments("m", engine_options(arguments))
    assert (found.first_engine, found.data_parallel_size) == right


def test_engines_are_named_by_their_numbers_among_all() -> None:
    arguments = EngineArguments("fake?", data_parallel_size=2, first_engine=6)
    client = make_client(arguments, [ProcessLauncher(FACTORY) for _ in range(2)], patient())
    try:
        client.start()

        async def world() -> None:
            caller = Caller(client)
            caller.send(*[request(f"r{each}", [each, 1]) for each in range(4)])
            await caller.all_ended()
            seen = [end.stats.engines for end in caller.ends.values() if end.stats is not None]
            assert sorted(number for each in seen for number in each) == [6, 6, 7, 7]

        run(world)
        runs = [engine.supervisor.run for engine in client.engines]
        assert [each.name for each in runs if each is not None] == ["6.1", "7.1"]
    finally:
        client.close()


@pytest.mark.parametrize("count", [1, 2])
def test_series_have_the_engines_numbers(count: int) -> None:
    snapshots = [EngineSnapshot(num_blocks=5) for _ in range(count)]
    metrics = Metrics(NoQueue(), lambda: snapshots, lambda: 1.0, first_engine=3)
    text = metrics.text("m", "vllm").decode()
    assert 'engine="0"' not in text
    for number in range(3, 3 + count):
        assert f'vllm:num_requests_running{{model_name="m",engine="{number}"}}' in text
    assert ('engine="all"' in text) is (count > 1)
