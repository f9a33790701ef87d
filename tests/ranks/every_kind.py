"""Every kind of model in every format, as two, three and four ranks: `make test-ranks`."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from octavo import LLM
from octavo.core import outcome
from octavo.core.pace.ahead_counts import AheadCounts
from octavo.core.pace.draft_counts import DraftCounts
from tests.core.ahead_trees import trees_by
from tests.quantize.made import write_model
from tests.ranks.small import FORMATS, KINDS, MIXTURES, TIGHT, alone, answers, long_answers, write
from tests.runner.speculate.fitted_heads import fit_dflash
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


# The copies: one for all ranks, and as many as two ranks can use of three experts.
@pytest.mark.parametrize("copies", [0, 1, 3])
@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("kind", MIXTURES)
def test_ranks_with_whole_experts_answer_as_one_process(
    directory: Path, kind: str, format_: str, ranks: int, copies: int
) -> None:
    options: dict[str, Any] = {**FORMATS[format_], "enable_expert_parallel": True}
    if copies:
        options["enable_eplb"] = True
        options["eplb_config"] = {"num_redundant_experts": copies, "step_interval": 3}
    found, _ = answers(write(directory, kind), tensor_parallel_size=ranks, **options)
    assert found == alone(directory, kind, format_)


def test_threads_of_ranks_with_whole_experts_divide_them(directory: Path) -> None:
    kind = "Qwen2MoeForCausalLM"
    options = {**FORMATS["int8"], "tensor_parallel_size": 2, "num_threads": 3}
    found, _ = answers(write(directory, kind), **options, enable_expert_parallel=True)
    assert found == alone(directory, kind, "int8")


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
        mock.patch.object(DraftCounts, "_costs", return_value=None),
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


@pytest.mark.parametrize("format_", ["bf16", "int8"])
@pytest.mark.parametrize("ranks", RANKS)
def test_drafts_in_blocks_change_nothing(directory: Path, format_: str, ranks: int) -> None:
    """The model keeps keys and values for a drafter, of which each rank has computed a share."""
    calm = directory / "calm"
    if not calm.exists():
        calm.mkdir()
        make_calm_model(calm)
    drafter = directory / "dflash"
    if not drafter.exists():
        fit_dflash(calm, drafter)
    expected, _ = answers(calm, **FORMATS[format_])
    with (
        mock.patch.object(DraftCounts, "_costs", return_value=None),
        mock.patch.object(AheadCounts, "_trees", trees_by(lambda _, each, *__: [3] * len(each))),
        mock.patch.object(AheadCounts, "learn"),
    ):
        found, snapshot = answers(
            calm,
            tensor_parallel_size=ranks,
            speculative_config={"model": str(drafter), "num_speculative_tokens": 4},
            num_gpu_blocks_override=90,
            max_num_batched_tokens=200,
            **FORMATS[format_],
        )
    assert found == expected
    assert snapshot.num_accepted_drafts > 0


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
    expected = long_answers(directory, kind)
    assert len(expected) == 20
    for ranks in RANKS:
        contexts = {"decode_context_parallel_size": ranks, "prefill_context_parallel_size": ranks}
        assert long_answers(directory, kind, tensor_parallel_size=ranks, **contexts) == expected
