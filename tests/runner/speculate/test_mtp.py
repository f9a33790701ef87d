"""Layers for drafts in a model's own files: they follow the published forward pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.backends.base import DRAFTER
from octavo.engine.drafting.drafter import layout_of, open_with_drafter, weight_files
from octavo.loader.errors import CheckpointError
from octavo.options.engine import read_arguments
from octavo.resolve import make_bill
from tests.runner.speculate.head_files import load, save
from tests.runner.speculate.mtp_files import MIMO_LAYER, in_fp8, make_deepseek, make_mimo
from tests.runner.speculate.recorded import proposals_of

MAKERS = {"mimo": make_mimo, "deepseek": make_deepseek}
MTP = {"method": "mtp"}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("kind", MAKERS)
def test_drafts_are_those_of_the_published_forward_pass(
    tmp_path: Path, backend: str, kind: str
) -> None:
    pytest.importorskip("torch")
    from tests.runner.speculate.mtp_reference import MultiToken

    directory = MAKERS[kind](tmp_path)
    found = proposals_of(directory, None, backend)
    assert len(found) > 20
    reference = MultiToken(kind, directory)
    for text, proposed in found.items():
        assert [*proposed] == reference.drafts([*text], len(proposed)), text


Change = Callable[[dict[str, Any], dict[str, np.ndarray]], Any]

WRONG: tuple[tuple[Change, str], ...] = (
    (
        lambda config, tensors: tensors.pop(f"{MIMO_LAYER}.input_proj.weight"),
        r"needs model\.mtp_layers\.0\.input_proj\.weight, and the model's files lack it",
    ),
    (lambda config, tensors: tensors.pop(f"{MIMO_LAYER}.mlp.up_proj.weight"), "up_proj.weight"),
    (
        lambda config, tensors: tensors.update(
            {f"{MIMO_LAYER}.input_proj.weight": np.zeros((32, 62), np.float32)}
        ),
        r"input_proj.weight': has shape \[32, 62\] but the model needs \[32, 64\]",
    ),
    (
        lambda config, tensors: tensors.update(
            {f"{MIMO_LAYER}.more.weight": np.zeros((32, 32), np.float32)}
        ),
        "more.weight'",
    ),
    (
        lambda config, tensors: config.update(architectures=["Qwen2ForCausalLM"]),
        "a model of the kind Qwen2ForCausalLM has no layer of its own that drafts",
    ),
)


def test_models_without_a_right_layer_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    directory = make_mimo(tmp_path)
    published = load(directory)
    for change, match in WRONG:
        config, tensors = (dict(each) for each in published)
        change(config, tensors)
        save(directory, config, tensors)
        with pytest.raises(CheckpointError, match=match):
            LLM(str(directory), speculative_config=MTP)


@pytest.mark.slow
def test_a_layer_may_be_quantised_as_the_model_is(tmp_path: Path) -> None:
    """DeepSeek publishes its models in FP8; what joins the inputs is not quantised."""
    pytest.importorskip("torch")
    directory = in_fp8(make_deepseek(tmp_path))
    prompts = [{"prompt_token_ids": text} for text in ([5, 6, 7], [*range(20, 60)])]
    sampling = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    found = []
    for settings in ({"method": "off"}, MTP):
        with LLM(str(directory), num_gpu_blocks_override=40, speculative_config=settings) as llm:
            outputs = llm.generate(prompts, sampling, use_tqdm=False)
            found.append([each.outputs[0].token_ids for each in outputs])
    assert found[0] == found[1]


def test_a_layer_for_drafts_is_counted_where_it_is_used(tmp_path: Path) -> None:
    """Memory is taken for its weights, its step and a row of each token, and else for none."""
    directory = make_deepseek(tmp_path)
    asked = read_arguments(str(directory), {"speculative_config": MTP, "backend": "native"})
    _, opened = open_with_drafter(asked)
    bill = make_bill(asked, opened, layout_of(opened))
    drafter = opened.drafter
    assert drafter is not None
    names = sorted({*drafter.weights.shapes()})
    assert "model.layers.0.eh_proj/0.weight" in names
    assert not any("embed_tokens" in name or "shared_head.head" in name for name in names)
    count = sum(map(math.prod, drafter.weights.shapes().values()))
    assert count < bill.drafter_bytes < 3 * count  # most in eight bits, and narrow matrices
    assert weight_files(opened) == tuple(opened.checkpoint.files)
    plain = read_arguments(str(directory), {"backend": "native"})
    _, alone = open_with_drafter(plain)
    without = make_bill(plain, alone, layout_of(alone))
    assert without.drafter_bytes == 0
    assert without.weights_bytes == bill.weights_bytes
    assert [group.spec.kind for group in layout_of(alone).groups] == ["latent"]
    kinds = [(group.spec.kind, group.owner) for group in layout_of(opened).groups]
    assert sorted(kinds) == [("latent", ""), ("latent", DRAFTER), ("row", "")]
