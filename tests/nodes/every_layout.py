"""Every kind of model, and every format, on two and three nodes: `make test-ranks`.

Both together are tested on one machine (tests/stages), of which nodes compute the same programs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.backends.native.tiers import orders
from tests.nodes.running import LOCAL_HOST, Nodes, nodes
from tests.quantize.made import write_model
from tests.ranks.small import FORMATS, KINDS, alone, answers, write


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


CASES = [
    *((kind, "bf16", 2) for kind in KINDS),
    *(("LlamaForCausalLM", format_, 3) for format_ in FORMATS),
]


@pytest.mark.parametrize(("kind", "format_", "count"), CASES)
def test_nodes_answer_as_one_process(
    directory: Path, tmp_path: Path, kind: str, format_: str, count: int
) -> None:
    model, options = write(directory, kind), FORMATS[format_]
    with nodes(model, tmp_path, count) as others:
        found, _ = answers(model, **others.options, **options)
    assert found == alone(directory, kind, format_)


def test_nodes_of_ranks_answer_as_one_process(directory: Path, tmp_path: Path) -> None:
    model = write(directory, "LlamaForCausalLM")
    with nodes(model, tmp_path, 2) as others:
        found, _ = answers(model, **others.options, tensor_parallel_size=2)
    assert found == alone(directory, "LlamaForCausalLM", "bf16")


def test_nodes_with_other_instructions_answer_as_one_process(
    directory: Path, tmp_path: Path
) -> None:
    tiers = [tier for tier, order in orders().items() if order == "fma"]
    model, options = write(directory, "LlamaForCausalLM"), {"accumulation_order": "fma"}
    others = Nodes(model, tmp_path, 2, 2, LOCAL_HOST)
    try:
        others.start(1, cpu_isa=tiers[0])
        found, _ = answers(model, **others.options, **options, cpu_isa=tiers[-1])
    finally:
        others.end()
    assert found == answers(model, **options)[0]


@pytest.mark.parametrize("kind", ["LlamaForCausalLM", "Qwen2MoeForCausalLM"])
def test_nodes_of_two_stages_answer_as_one_process(tmp_path: Path, kind: str) -> None:
    model = write_model(tmp_path / kind, kind, num_hidden_layers=4)
    with nodes(model, tmp_path, 4, 2) as others:
        found, _ = answers(model, **others.options)
    assert found == answers(model)[0]
