"""DFlash: its drafts are those of the published forward pass, and wrong files are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.core.config import ConfigError
from octavo.engine.drafting.drafter import layout_of, open_with_drafter
from octavo.loader.errors import CheckpointError
from octavo.options.engine import read_arguments
from octavo.resolve import make_bill, resolve
from octavo.runner.speculate.heads import HeadsProposer
from tests.api.tiny import make_model
from tests.runner.speculate.dflash.files import as_speculators, make_dflash
from tests.runner.speculate.head_files import HEAD_DIM, load, save
from tests.runner.speculate.recorded import MOST, proposals_of, recorded

WINDOWS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
# How the files are written, and what their layers read.
FORMS: dict[str, dict[str, Any]] = {
    "published": {},
    "one layer": {"layers": 1},
    "short block": {"block_size": 3},
    "windows": WINDOWS,
    "windows both ways": {**WINDOWS, "causal": False},
    "speculators": {},
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("form", FORMS)
def test_drafts_are_those_of_the_published_forward_pass(
    tmp_path: Path, backend: str, form: str
) -> None:
    pytest.importorskip("torch")
    from tests.runner.speculate.dflash.reference import dflash
    from tests.runner.speculate.head_reference import Target

    directory = make_model(tmp_path)
    drafter = make_dflash(tmp_path / "drafter", **FORMS[form])
    if form == "speculators":
        as_speculators(drafter)
    found = proposals_of(directory, drafter, backend, HeadsProposer)
    assert len(found) > 20
    most = min(MOST, FORMS[form].get("block_size", 16) - 1)
    assert {len(proposed) for proposed in found.values()} >= {1, most}
    target = Target(directory)
    for text, proposed in found.items():
        right = dflash(drafter, target, [*text], len(proposed), most + 1)
        assert [*proposed] == right, text


WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "repetition_penalty": 1.3},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 1.2, "seed": 4, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 0.7, "seed": 5, "presence_penalty": 0.8, "frequency_penalty": 0.4},
    {"temperature": 1.0, "seed": 6, "n": 2, "logprobs": 2},
)


@pytest.mark.slow
def test_both_backends_draw_the_same_drafts(tmp_path: Path) -> None:
    """Each is drawn as the request's tokens are, with those proposed before it."""
    pytest.importorskip("torch")
    directory, drafter = make_model(tmp_path), make_dflash(tmp_path / "drafter")
    sampling = [SamplingParams(max_tokens=20, ignore_eos=True, **way) for way in WAYS]
    prompts = [{"prompt_token_ids": [5 + number, 6, 7, 8, 9]} for number in range(len(WAYS))]
    drawn = []
    for backend in ("native", "torch"):
        with recorded(directory, drafter, backend, HeadsProposer) as (llm, found):
            llm.generate(prompts, sampling, use_tqdm=False)
        drawn.append(found)
    assert len(drawn[0]) > 40
    assert drawn[0] == drawn[1]


Change = Callable[[dict[str, Any], dict[str, np.ndarray]], Any]


def of_dflash(**values: Any) -> Change:
    """Return a change of the part of the configuration that is DFlash's own."""
    return lambda config, tensors: config["dflash_config"].update(values)


WRONG: tuple[tuple[Change, str], ...] = (
    (lambda config, tensors: tensors.pop("fc.weight"), "'fc.weight'"),
    (lambda config, tensors: tensors.pop("hidden_norm.weight"), "'hidden_norm.weight'"),
    (lambda config, tensors: tensors.pop("layers.1.self_attn.k_norm.weight"), r"\.k_norm\.weight"),
    (
        lambda config, tensors: tensors.update({"fc.weight": np.ones((32, 64), np.float32)}),
        r"'fc.weight': has shape \[32, 64\] but the model needs \[32, 32\]",
    ),
    (lambda config, tensors: tensors.update({"more": tensors["norm.weight"]}), "'more'"),
    (
        lambda config, tensors: tensors.update(
            {"layers.0.self_attn.q_proj.bias": np.ones(32, np.float32)}
        ),
        "'layers.0.self_attn.q_proj.bias'",
    ),
    (lambda config, tensors: config.update(vocab_size=310), "vocab_size is 310, and the model"),
    (lambda config, tensors: config.update(hidden_size=64), "hidden_size is 64, and the model"),
    (
        lambda config, tensors: config.update(hidden_size=64, target_hidden_size=32),
        "hidden_size is 64, and the model's embedding has 32",
    ),
    (lambda config, tensors: config.update(num_hidden_layers=17), "num_hidden_layers is 17; draf"),
    (lambda config, tensors: config.update(draft_vocab_size=220), "'d2t'"),
    (lambda config, tensors: config.update(block_size=1), "block_size must be from 2 to 256"),
    (lambda config, tensors: config.update(block_size=10**6), "block_size must be from 2 to 256"),
    (lambda config, tensors: config.update(dflash_config=[1]), "dflash_config must be an object"),
    (of_dflash(mask_token_id=300), "mask_token_id is 300, and the model has 300 tokens"),
    (of_dflash(mask_token_id=-1), "mask_token_id must be a whole number"),
    (of_dflash(mask_token_id=None), "mask_token_id is missing"),
    (lambda config, tensors: config.pop("dflash_config"), "aux_hidden_state_layer_ids must be a"),
    (of_dflash(target_layer_ids=[1]), "target_layer_ids must be layers of the model, from 0 to 0"),
    (of_dflash(target_layer_ids=[]), "target_layer_ids must be layers of the model"),
    (of_dflash(target_layer_ids=[0, 0]), "target_layer_ids is .*; its layers must come in"),
    (of_dflash(target_layer_ids=None), "aux_hidden_state_layer_ids must be a list"),
    (of_dflash(use_swa=True), "layers need a sliding_window above 0"),
    (
        lambda config, tensors: config.update(layer_types=["sliding_attention", "full_attention"]),
        "layers need a sliding_window above 0",
    ),
    (lambda config, tensors: config.update(projector_type="domino"), "is 'domino': such drafters"),
    (lambda config, tensors: config.update(sample_from_anchor=True), "is True: such drafters"),
    (lambda config, tensors: config.update(is_causal="no"), "is_causal must be true or false"),
)


def test_wrong_files_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    directory, drafter = make_model(tmp_path), make_dflash(tmp_path / "drafter")
    for number, (change, match) in enumerate(WRONG):
        config, tensors = load(drafter)
        change(config, tensors)
        made = save(tmp_path / f"wrong {number}", config, tensors)
        with pytest.raises(CheckpointError, match=match):
            LLM(str(directory), speculative_config={"method": "dflash", "model": str(made)})


def test_files_for_another_method_are_refused(tmp_path: Path) -> None:
    directory, drafter = make_model(tmp_path), make_dflash(tmp_path / "drafter")
    with pytest.raises(ConfigError, match="method='eagle', and its files are for 'dflash'"):
        LLM(str(directory), speculative_config={"method": "eagle", "model": str(drafter)})
    config, tensors = load(drafter)
    for other, found in (
        ({"architectures": ["DFlash2DraftModel"]}, "dflash2"),
        ({"speculators_model_type": "dspark"}, "dspark"),
    ):
        made = save(tmp_path / found, {**config, **other}, tensors)
        with pytest.raises(ConfigError, match=f"for the method '{found}', and there is .*dflash"):
            LLM(str(directory), speculative_config={"model": str(made)})


def test_a_block_has_a_row_for_each_token_that_is_asked_for(tmp_path: Path) -> None:
    directory, drafter = make_model(tmp_path), make_dflash(tmp_path / "drafter", block_size=8)
    for asked, most in ((5, 5), (7, 7), (20, 7)):
        settings = {"model": str(drafter), "num_speculative_tokens": asked}
        with LLM(str(directory), speculative_config=settings) as llm:
            config = llm._runner._model.core.scheduler.kv.config
            assert config.max_ahead == most
            assert config.ahead_in_block
            assert config.max_ahead_lag == config.max_model_len  # it lacks nothing
            assert not any(group.owner for group in config.groups)  # the model writes them all


@pytest.mark.parametrize("method", [None, "dflash"])
@pytest.mark.parametrize(("block_size", "most"), [(16, 15), (3, 2), (256, 64)])
def test_a_block_is_as_long_as_its_files_have_it_unless_another_number_is_given(
    tmp_path: Path,
    method: str | None,
    block_size: int,
    most: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    directory = make_model(tmp_path)
    drafter = make_dflash(tmp_path / "drafter", block_size=block_size)
    for given, number in ((None, most), (1, 1)):
        settings = {"method": method, "model": str(drafter), "num_speculative_tokens": given}
        asked = read_arguments(str(directory), {"speculative_config": settings})
        _, opened = open_with_drafter(asked)
        config = resolve(asked, opened, layout_of(opened))
        assert config.core.max_ahead == number
        assert config.core.max_drafts == max(number, 16)  # as many as predictions have
        assert config.arguments.speculative_config is not None
        assert config.arguments.speculative_config.num_speculative_tokens == number
        said = [each for each in caplog.messages if each.startswith("speculation:")]
        tokens = f"up to {number} drafts for a sequence in a step"
        assert said == [f"speculation: method=dflash, {tokens}"]
        caplog.clear()


def test_scores_may_have_biases_a_factor_and_a_cap(tmp_path: Path) -> None:
    """None of these changes the likeliest token of the tiny drafter, but biases do."""
    directory, drafter = make_model(tmp_path), make_dflash(tmp_path / "drafter")
    plain = proposals_of(directory, drafter, "native", HeadsProposer)
    config, tensors = load(drafter)
    config["dflash_config"] |= {"output_multiplier": 0.5, "final_logit_softcapping": 20.0}
    save(drafter, config, tensors)
    assert proposals_of(directory, drafter, "native", HeadsProposer) == plain
    for number in range(2):
        for name, size in (("q", 32), ("k", 2 * HEAD_DIM), ("v", 2 * HEAD_DIM), ("o", 32)):
            bias = np.random.default_rng(number).standard_normal(size).astype(np.float32)
            tensors[f"layers.{number}.self_attn.{name}_proj.bias"] = bias
    save(drafter, {**config, "attention_bias": True}, tensors)
    found = proposals_of(directory, drafter, "native", HeadsProposer)
    assert found.keys() == plain.keys()
    assert found != plain


def test_fit_counts_the_weights_the_rows_and_the_kv_of_a_drafter(tmp_path: Path) -> None:
    directory, drafter = make_model(tmp_path), make_dflash(tmp_path / "drafter")
    for backend in ("native", "torch"):
        found = []
        for settings in ({"method": "ngram"}, {"model": str(drafter)}):
            values = {"speculative_config": settings, "backend": backend, "max_num_seqs": 8}
            asked = read_arguments(str(directory), values)
            _, opened = open_with_drafter(asked)
            found.append(make_bill(asked, opened, layout_of(opened)))
        plain, bill = found
        assert plain.drafter_bytes == 0 < bill.drafter_bytes
        assert bill.step_bytes > plain.step_bytes
        assert len(bill.groups) == len(plain.groups) + 1
