"""Ranks that have whole experts: their memory, the bits, and experts that two ranks have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.backends.native import _native
from octavo.backends.native.packing import ExpertOwners, Packer
from octavo.core.config import ConfigError
from octavo.layers import DownLinear, GateUpLinear, Linear
from octavo.loader.source import resolve
from octavo.models.load import open_model
from octavo.options.engine import read_arguments
from octavo.options.processes.experts import EPLBConfig
from octavo.room_for_ranks import check_experts_of
from tests.backends.native.test_packing import INPUTS, stored
from tests.ranks.small import FORMATS, TIGHT, answers, write

WHOLE: dict[str, Any] = {"enable_expert_parallel": True}


def programs(llm: LLM) -> Sequence[_native.Program]:
    """Return the native programs of an engine in this process."""
    engine: Any = llm._model.engine
    found: Sequence[_native.Program] = engine.core._executor.runner._backend.native_programs
    return found


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_packs_the_experts_that_it_owns_and_no_others(rank: int) -> None:
    team = _native.Team(1, False)
    packer, alone = Packer(team, "auto", owners=ExpertOwners(rank, 3)), Packer(team, "auto")
    rows = stored("BF16", 64)
    matrices = [[rows.cut(0, 32), rows.cut(32, 64)] for _ in range(4)]
    made = packer.experts(matrices, GateUpLinear(INPUTS, 32))
    down = packer.experts([[rows]] * 4, DownLinear(INPUTS, 64, shard="in"))
    one = alone.experts(matrices[:1], GateUpLinear(INPUTS, 32)).matrices[0]
    packer.finish()
    alone.finish()
    held = ExpertOwners(rank, 3).held(4)
    assert held.count("whole") == (2 if rank == 2 else 1)
    assert made.are_whole
    assert down.are_whole
    assert packer.num_bytes == 2 * held.count("whole") * one.num_bytes
    for each, matrix in zip(held, made.matrices, strict=True):
        if each == "whole":
            assert matrix.pieces[0].native.panels.tobytes() == one.pieces[0].native.panels.tobytes()


def test_heads_are_no_experts() -> None:
    """Ranks have a share of each head's matrix in any case."""
    packer = Packer(_native.Team(1, False), "auto", owners=ExpertOwners(1, 2))
    made = packer.experts([[stored("BF16", 32)]] * 3, Linear(INPUTS, 32))
    assert not made.are_whole
    assert packer.num_bytes == sum(matrix.num_bytes for matrix in made.matrices)


@pytest.mark.slow
def test_whole_experts_answer_as_one_process(tmp_path: Path) -> None:
    """tests/ranks/every_kind.py has all kinds and formats."""
    model, options = write(tmp_path, "Qwen2MoeForCausalLM"), FORMATS["exact"]
    expected, _ = answers(model, **options)
    found, snapshot = answers(model, tensor_parallel_size=2, **WHOLE, **options)
    assert found == expected
    assert snapshot.num_preemptions > 0


@pytest.mark.slow
def test_experts_that_are_copied_divide_the_rows_of_prompts(tmp_path: Path) -> None:
    """Prompts of one token choose the same experts, so these are the hottest."""
    model = str(write(tmp_path, "Qwen2MoeForCausalLM"))
    prompts = [[5 + i % 3] * 56 for i in range(12)]
    settings = SamplingParams(max_tokens=4, temperature=0.0, logprobs=2, ignore_eos=True)
    options: dict[str, Any] = {**TIGHT, "max_num_batched_tokens": 256}
    options |= {"num_gpu_blocks_override": 40, "enable_prefix_caching": False}

    def found(llm: LLM) -> Any:
        outputs = llm.generate(prompts, settings, use_tqdm=False)
        return [(each.outputs[0].token_ids, each.outputs[0].logprobs) for each in outputs]

    with LLM(model, **options) as alone:
        expected = found(alone)
    copies = {"num_redundant_experts": 2, "step_interval": 1}
    options |= {**WHOLE, "enable_eplb": True, "eplb_config": copies}
    with LLM(model, **options, tensor_parallel_size=2) as llm:
        (program,) = programs(llm)
        assert program.redundant_experts == []
        for _ in range(3):
            assert found(llm) == expected
        copied = program.redundant_experts
    assert copied
    assert len({mixture for mixture, _, _ in copied}) == 2  # both layers'
    assert all(rank in (0, 1) for _, _, rank in copied)


@pytest.mark.slow
def test_copies_of_experts_are_no_part_of_a_step(tmp_path: Path) -> None:
    """Memory of copies is taken before the cache gets its size, and counts once."""
    model = str(write(tmp_path, "Qwen2MoeForCausalLM"))
    step_bytes, rank_bytes = [], []
    for copies in (0, 6):
        options: dict[str, Any] = {**TIGHT, **WHOLE, "tensor_parallel_size": 2}
        options |= {"enable_eplb": True, "eplb_config": {"num_redundant_experts": copies}}
        with LLM(model, **options) as llm:
            engine: Any = llm._model.engine
            backend = engine.core._executor.runner._backend
            step_bytes.append(backend.reserve(engine.config.largest_step, 0))
            rank_bytes.append(engine.config.bill.rank_bytes)
    assert step_bytes[0] == step_bytes[1]
    assert rank_bytes[0] < rank_bytes[1]


def test_more_copies_than_ranks_can_use_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = read_arguments(
        str(write(tmp_path, "Qwen2MoeForCausalLM")),
        {**WHOLE, "tensor_parallel_size": 3, "enable_eplb": True},
    )
    opened = open_model(resolve(asked.model))
    copies = EPLBConfig(num_redundant_experts=16)  # of 8 experts, each in all of 3 ranks
    check_experts_of(opened, replace(asked, eplb_config=copies))
    assert not caplog.messages
    with pytest.raises(ConfigError, match="can use 16 copies"):
        check_experts_of(opened, replace(asked, eplb_config=EPLBConfig(17)))
    check_experts_of(opened, asked)
    assert "copies no experts" in caplog.messages[-1]
    dense = open_model(resolve(str(write(tmp_path, "LlamaForCausalLM"))))
    check_experts_of(dense, asked)
    assert "the model has no experts" in caplog.messages[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_expert_parallel": True}, "there is one: give tensor_parallel_size too"),
        ({"tensor_parallel_size": 2, "enable_eplb": True}, "give enable_expert_parallel too"),
        ({"eplb_config": {"num_redundant_experts": 1}}, "settings of enable_eplb"),
        ({"eplb_config": '{"num_redundant_expert": 1}'}, "did you mean num_redundant_experts"),
        ({"eplb_config": {"num_redundant_experts": -1}}, "a whole number from 0 to 1024"),
        ({"eplb_config": {"step_interval": True}}, "a whole number from 1 to"),
        ({"eplb_config": "{"}, "it is not valid JSON"),
        ({"eplb_config": 3}, "it must be a mapping"),
    ],
)
def test_settings_of_experts_that_cannot_be_followed_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_arguments("m", options)


def test_vllms_other_keys_are_taken() -> None:
    config = read_arguments("m", {"eplb_config": {"window_size": 10, "use_async": True}})
    assert config.eplb_config is not None
    assert config.eplb_config.num_redundant_experts == 0
