"""Every kind of model in every format, as two, three and four ranks: `make test-ranks`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from octavo import LLM, SamplingParams
from octavo.core import outcome
from octavo.core.pace.ahead_counts import AheadCounts
from octavo.core.pace.draft_counts import DraftCounts
from tests.core.ahead_trees import trees_by
from tests.quantize.made import write_model
from tests.ranks.small import FORMATS, KINDS, TIGHT, alone, answers, write
from tests.runner.speculate.mixed_requests import drafter_of, make_calm_model
from tests.runner.speculate.mtp_files import make_mimo

RANKS = (2, 3, 4)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_answer_as_one_process(directory: Path, kind: str, format_: str, ranks: int) -> None:
    options = {**FORMATS[format_], "tensor_parallel_size": ranks}
    assert answers(write(directory, kind), **options)[0] == alone(directory, kind, format_)


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_of_ranks_divide_their_share(directory: Path, threads: int) -> None:
    options = {**FORMATS["int4"], "tensor_parallel_size": 2, "num_threads": threads}
    found, _ = answers(write(directory, "LlamaForCausalLM"), **options)
    assert found == alone(directory, "LlamaForCausalLM", "int4")


@pytest.mark.parametrize("method", ["ngram", "suffix", "draft_model"])
@pytest.mark.parametrize("ranks", RANKS)
def test_drafts_change_nothing(directory: Path, method: str, ranks: int) -> None:
    speculation: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    if method == "draft_model":
        drafter = directory / "drafter"
        if not drafter.exists():
            write_model(drafter, num_hidden_layers=1)
        speculation["model"] = str(drafter)
    found, snapshot = answers(
        write(directory, "LlamaForCausalLM"),
        tensor_parallel_size=ranks,
        speculative_config=speculation,
        num_gpu_blocks_override=24,
    )
    assert found == alone(directory, "LlamaForCausalLM", "bf16")
    assert snapshot.num_drafts > 0


@pytest.mark.parametrize("format_", ["bf16", "int8"])
@pytest.mark.parametrize("ranks", RANKS)
def test_trees_of_drafts_change_nothing(directory: Path, format_: str, ranks: int) -> None:
    """A model of other weights proposes: some drafts of branches are right."""
    calm = directory / "calm"
    if not calm.exists():
        calm.mkdir()
        make_calm_model(calm)
    expected, _ = answers(calm, **FORMATS[format_])
    with (
        mock.patch.object(outcome, "_accepted", wraps=outcome._accepted) as accepted,
        mock.patch.object(DraftCounts, "_costs", return_value=(1.0, 0.0)),
        mock.patch.object(AheadCounts, "_trees", trees_by(lambda _, each, *__: [2] * len(each))),
        mock.patch.object(AheadCounts, "learn"),
    ):
        found, snapshot = answers(
            calm,
            tensor_parallel_size=ranks,
            speculative_config={
                "model": str(drafter_of(calm, 0.3)),
                "num_speculative_tokens": 2,
                "draft_candidates": 3,
            },
            num_gpu_blocks_override=90,
            max_num_batched_tokens=200,
            **FORMATS[format_],
        )
    assert found == expected
    assert snapshot.num_accepted_drafts > 0
    assert any(walk for _, (_, _, walk), _ in accepted.mock_calls)


@pytest.mark.parametrize("ranks", RANKS)
def test_a_layer_of_the_model_that_drafts_changes_nothing(directory: Path, ranks: int) -> None:
    model = directory / "mimo"
    if not model.exists():
        model.mkdir()
        make_mimo(model)
    found, snapshot = answers(
        model,
        tensor_parallel_size=ranks,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
        num_gpu_blocks_override=24,
    )
    assert found == answers(model)[0]
    assert snapshot.num_drafts > 0


@pytest.mark.parametrize("ranks", RANKS)
def test_vectors_are_the_same(directory: Path, ranks: int) -> None:
    encoder = directory / "encoder"
    if not encoder.exists():
        write_model(encoder, "BertModel")

    def vectors(**options: Any) -> list[list[float]]:
        with LLM(str(encoder), **{**TIGHT, **options}) as llm:
            return [each.outputs.embedding for each in llm.embed([[4, 5, 6], [*range(3, 40)]])]

    assert vectors(tensor_parallel_size=ranks) == vectors()


# Attention whose KV heads are one, several, latent or in windows.
@pytest.mark.parametrize(
    "kind",
    ["FalconForCausalLM", "LlamaForCausalLM", "DeepseekV3ForCausalLM", "Gemma2ForCausalLM"],
)
def test_ranks_divide_the_positions_of_a_long_sequence(directory: Path, kind: str) -> None:
    """A sequence of several runs of 512 positions is alone, so that it is cut."""
    model = directory / f"long {kind}"
    write_model(model, kind, **{**KINDS[kind], "max_position_embeddings": 2048})
    prompt = [3 + 7 * j % 90 for j in range(1400)]
    settings = SamplingParams(max_tokens=20, temperature=0.0, logprobs=2, ignore_eos=True)

    def found(**more: Any) -> Any:
        options = {"num_threads": 1, "max_num_seqs": 1, "max_num_batched_tokens": 256, **more}
        with LLM(str(model), num_gpu_blocks_override=140, **options) as llm:
            (output,) = llm.generate([prompt], settings, use_tqdm=False)
        return output.outputs[0].logprobs

    expected = found()
    assert len(expected) == 20
    for ranks in RANKS:
        contexts = {"decode_context_parallel_size": ranks, "prefill_context_parallel_size": ranks}
        assert found(tensor_parallel_size=ranks, **contexts) == expected
