"""Every kind of model in every format, as two and three stages, and as stages of two ranks each.

`make test-ranks` runs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from octavo import LLM
from tests.quantize.made import write_model
from tests.ranks.small import FORMATS, KINDS, MIXTURES, TIGHT, alone, answers, write
from tests.stages.small_steps import small_steps

STAGES = (2, 3)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("stages", STAGES)
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_stages_answer_as_one_process(
    directory: Path, kind: str, format_: str, stages: int
) -> None:
    options = {**FORMATS[format_], "pipeline_parallel_size": stages}
    expected = alone(directory, kind, format_)
    with small_steps():
        assert answers(write(directory, kind), **options)[0] == expected


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_stages_of_ranks_answer_as_one_process(directory: Path, kind: str, format_: str) -> None:
    options = {**FORMATS[format_], "pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    expected = alone(directory, kind, format_)
    with small_steps():
        assert answers(write(directory, kind), **options)[0] == expected


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("kind", MIXTURES)
def test_stages_of_ranks_with_whole_experts_answer_as_one_process(
    directory: Path, kind: str, format_: str
) -> None:
    options: dict[str, Any] = {**FORMATS[format_], "enable_expert_parallel": True}
    options |= {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}
    expected = alone(directory, kind, format_)
    with small_steps():
        assert answers(write(directory, kind), **options)[0] == expected


@pytest.mark.parametrize("method", ["ngram", "suffix"])
def test_drafts_change_nothing(directory: Path, method: str) -> None:
    speculation: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    found, snapshot = answers(
        write(directory, "LlamaForCausalLM"),
        pipeline_parallel_size=2,
        speculative_config=speculation,
        num_gpu_blocks_override=24,
        num_threads=2,
    )
    assert found == alone(directory, "LlamaForCausalLM", "bf16")
    assert snapshot.num_drafts > 0


def test_vectors_are_the_same(directory: Path) -> None:
    encoder = write_model(directory / "encoder", "BertModel")

    def vectors(**options: Any) -> list[list[float]]:
        with LLM(str(encoder), **{**TIGHT, **options}) as llm:
            return [each.outputs.embedding for each in llm.embed([[4, 5, 6], [*range(3, 40)]])]

    assert vectors(pipeline_parallel_size=2) == vectors()
