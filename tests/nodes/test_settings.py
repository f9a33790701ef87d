"""Settings of nodes that do not fit are refused by name, before anything is loaded or opened."""

from __future__ import annotations

from typing import Any

import pytest

from octavo import LLM
from octavo.cli.engine_options import add_engine_options, add_model, engine_arguments
from octavo.cli.parsing import Parser
from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments, read_arguments

TWO: dict[str, Any] = {"pipeline_parallel_size": 2, "nnodes": 2}
SUMS: dict[str, Any] = {
    "tensor_parallel_size": 2,
    "tensor_parallel_form": "sums",
    "nnodes": 2,
}
SECOND: dict[str, Any] = {**TWO, "node_rank": 1, "headless": True}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nnodes": 2}, "nnodes=2 with pipeline_parallel_size=1"),
        ({"nnodes": 2, "pipeline_parallel_size": 3}, "nodes have equal numbers of stages"),
        ({"nnodes": 0}, "nnodes=0 must be between 1"),
        ({"node_rank": 1, "headless": True}, "node_rank=1 is not among the nodes"),
        ({**TWO, "node_rank": 2, "headless": True}, "node_rank=2 is not among the nodes"),
        ({**TWO, "node_rank": 1}, "node_rank=1 with headless=False"),
        ({**TWO, "headless": True}, "node_rank=0 with headless=True"),
        ({"headless": True}, "node_rank=0 with headless=True"),
        ({**TWO, "data_parallel_size": 2}, "start a server for each such engine"),
        ({**TWO, "master_addr": "10.0.0.1"}, "openssl rand -hex 32"),
        ({**TWO, "master_addr": "0.0.0.0"}, "openssl rand -hex 32"),
        ({**TWO, "master_addr": "node0.example"}, "openssl rand -hex 32"),
        ({**TWO, "master_addr": "[2001:db8::1]"}, "openssl rand -hex 32"),
        ({**TWO, "master_addr": "[::]"}, "openssl rand -hex 32"),
        (
            {**SECOND, "master_addr": "0.0.0.0", "link_secret_file": "/secret"},
            "no address to connect to",
        ),
        ({**TWO, "master_port": 0}, "master_port=0 must be between 1"),
        ({**TWO, "master_port": 65536}, "master_port=65536 must be between 1"),
        ({**TWO, "enable_lora": True}, "enable_lora with pipeline_parallel_size=2"),
        ({**SUMS, "nnodes": 3}, "nodes have equal numbers of ranks"),
        ({**SUMS, "tensor_parallel_form": "outputs"}, "or ranks that add up"),
        ({**SUMS, "spare_engine": True}, "spare_engine with nnodes=2"),
        ({**SUMS, "data_parallel_size": 2}, "start a server for each such engine"),
        ({**SUMS, "master_addr": "10.0.0.1"}, "openssl rand -hex 32"),
        ({**SUMS, "enable_lora": True}, "enable_lora with tensor_parallel_form=sums"),
    ],
)
def test_what_does_not_fit_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineArguments("m", **options)


@pytest.mark.parametrize(
    "options",
    [
        TWO,
        SECOND,
        {**TWO, "pipeline_parallel_size": 4},
        SUMS,
        {**SUMS, "tensor_parallel_size": 6, "node_rank": 1, "headless": True},
        {**TWO, "master_addr": "10.0.0.1", "link_secret_file": "/secret"},
        {**TWO, "master_addr": "::1"},
        {**TWO, "master_addr": "[::1]"},
        {"nnodes": 1, "node_rank": 0, "master_addr": "10.0.0.1"},  # as vLLM's launchers write
    ],
)
def test_what_fits_is_taken(options: dict[str, Any]) -> None:
    assert read_arguments("m", options).nnodes == options["nnodes"]


def test_flags_are_those_of_vllm() -> None:
    parser = Parser(prog="octavo")
    add_model(parser)
    add_engine_options(parser)
    words = "m -pp 2 --nnodes 2 --node-rank 1 --master-addr a --master-port 5 --headless"
    found = engine_arguments(parser.parse_args([*words.split(), "--link-secret-file", "/secret"]))
    assert found == EngineArguments(
        "m", **SECOND, master_addr="a", master_port=5, link_secret_file="/secret"
    )


def test_a_node_without_a_server_is_none_for_python() -> None:
    with pytest.raises(ConfigError, match="headless is for `octavo serve`"):
        LLM("m", **SECOND)
