"""Tokens and log-probabilities of an engine on several nodes, bit by bit those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from tests.nodes.running import nodes
from tests.quantize.made import write_model
from tests.ranks.small import FORMATS, TIGHT, answers, write

pytestmark = pytest.mark.slow


# tests/nodes/every_layout.py has the others.
@pytest.mark.parametrize(
    ("kind", "format_", "stages", "count"), [("LlamaForCausalLM", "int4", 2, 2)]
)
def test_nodes_answer_as_one_process(
    kind: str, format_: str, stages: int, count: int, tmp_path: Path
) -> None:
    """Prompts are cut, sequences preempted, and prefixes found in the cache."""
    model, options = write(tmp_path, kind), FORMATS[format_]
    expected, _ = answers(model, **options)
    with nodes(model, tmp_path, stages, count) as others:
        found, snapshot = answers(model, **others.options, **options)
    assert found == expected
    assert snapshot.num_preemptions > 0
    assert snapshot.num_cached_tokens > 0


@pytest.mark.parametrize(("ranks", "count"), [(2, 2)])
def test_ranks_of_nodes_add_up_as_those_of_one_machine(
    ranks: int, count: int, tmp_path: Path
) -> None:
    """Every bit is the same for the same number of ranks, wherever they are."""
    model = write(tmp_path, "LlamaForCausalLM")
    sums: dict[str, Any] = {"tensor_parallel_size": ranks, "tensor_parallel_form": "sums"}
    expected, _ = answers(model, **sums)
    with nodes(model, tmp_path, ranks, count, sums=True) as others:
        found, snapshot = answers(model, **others.options)
    assert found == expected
    assert snapshot.num_preemptions > 0
    assert snapshot.num_cached_tokens > 0


def test_the_kv_cache_has_as_many_blocks_as_a_node_has_room_for(tmp_path: Path) -> None:
    """A node with some of the layers has room for more blocks in as much memory."""
    model = write_model(tmp_path / "model", "LlamaForCausalLM", num_hidden_layers=8)
    num_bytes = 512 << 10
    options = {**TIGHT, "num_gpu_blocks_override": None, "kv_cache_memory_bytes": num_bytes}
    options["max_num_seqs"] = 64
    with LLM(str(model), **options) as llm:
        alone = llm._model.engine.config
    with nodes(model, tmp_path, 2) as others, LLM(str(model), **options, **others.options) as llm:
        divided = llm._model.engine.config
    assert divided.bill.block_bytes < alone.bill.block_bytes
    assert divided.core.num_blocks > alone.core.num_blocks
    assert divided.core.num_blocks * divided.bill.block_bytes <= num_bytes
