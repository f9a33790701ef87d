"""A draft model: what it proposes, which rows it computes, and which models can draft at all."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from octavo import LLM, SamplingParams
from octavo.core.config import ConfigError
from octavo.core.pace.ahead_counts import AheadCounts
from octavo.core.pace.draft_counts import DraftCounts
from tests.api.tiny import make_model
from tests.core.ahead_trees import trees_by
from tests.runner.speculate.mixed_requests import ENGINE, drafter_of, stats_of, varied_counts

WAYS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 3},
    {"temperature": 1.5, "seed": 4, "top_p": 0.9, "top_k": 30},
    {"temperature": 0.8, "seed": 5, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "n": 2},
)


@contextmanager
def engine(
    directory: Path, drafter: Path, keys: dict[str, Any] | None = None, **options: Any
) -> Iterator[LLM]:
    """Make an engine in which all is sent that is proposed, in parts of each text nothing."""
    config = {"model": str(drafter), "num_speculative_tokens": 4, **(keys or {})}
    given = {**ENGINE, "dtype": "float32", "speculative_config": config, **options}
    with (
        mock.patch.object(DraftCounts, "_costs", return_value=None),
        mock.patch.object(AheadCounts, "_trees", trees_by(varied_counts)),
        mock.patch.object(AheadCounts, "learn"),
        LLM(str(directory), **given) as made,
    ):
        yield made


def make_prompts() -> list[list[int]]:
    """Make prompts of many lengths, of which some begin alike."""
    chance = np.random.default_rng(9)
    shared = chance.integers(2, 300, 50).tolist()
    return [
        [*shared[: int(chance.integers(0, 50))], *chance.integers(2, 300, 2 + place % 9).tolist()]
        for place in range(24)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{"backend": "native"}, {"backend": "native", "dtype": "bfloat16"}, {}],
    ids=["float32", "bfloat16", "torch"],
)
def test_a_drafter_with_the_weights_of_the_model_is_never_wrong(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    """Rows are right behind chunks, hits, preemptions, and steps without the drafter."""
    if not options:
        pytest.importorskip("torch")
    directory = make_model(tmp_path)
    asked = [
        SamplingParams(max_tokens=20 + place, ignore_eos=True, **WAYS[place % len(WAYS)])
        for place in range(24)
    ]
    keys = {"quantization": "bf16"} if "dtype" in options else {}
    with engine(directory, directory, keys, **(options or {"backend": "torch"})) as llm:
        llm.generate([{"prompt_token_ids": each} for each in make_prompts()], asked, use_tqdm=False)
        stats = stats_of(llm)
    assert stats.num_accepted_drafts == stats.num_drafts > 100
    assert stats.num_preemptions > 0 < stats.num_cached_tokens


@pytest.mark.slow
def test_the_first_proposals_need_a_block_more_than_the_tables_have(tmp_path: Path) -> None:
    """A backend that gets whole tables gets the wider ones, once they are used."""
    pytest.importorskip("torch")
    directory = make_model(tmp_path)
    sampling = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)

    def near_the_end(self: Any, sampling: list[Any], *_: int) -> list[int]:
        is_near = [each.num_planned % ENGINE["block_size"] in range(11, 15) for each in sampling]
        return [4 * near for near in is_near]

    with engine(directory, directory, backend="torch") as llm:
        with mock.patch.object(AheadCounts, "_trees", trees_by(near_the_end)):
            llm.generate([{"prompt_token_ids": [5, 6, 7]}], sampling, use_tqdm=False)
        stats = stats_of(llm)
    assert stats.num_accepted_drafts == stats.num_drafts > 8


def test_which_models_can_draft(tmp_path: Path) -> None:
    directory = make_model(tmp_path)
    other = drafter_of(directory, 0.0)
    config = json.loads((other / "config.json").read_text())
    weights = load_file(other / "model.safetensors")
    tokenizer = (other / "tokenizer.json").read_text()

    def refused(match: str, **options: Any) -> None:
        with pytest.raises(ConfigError, match=match):
            LLM(str(directory), speculative_config={"model": str(other)}, **options)

    (other / "tokenizer.json").write_text(tokenizer.replace('"</s>"', '"</t>"'))
    refused("token 1 is '</t>' there, and '</s>' in the model \\(1 tokens differ\\)")
    (other / "tokenizer.json").write_text(tokenizer)
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": 310}))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = np.concatenate([weights[name], weights[name][:10]])
    save_file(weights, other / "model.safetensors")
    refused("it has 310 tokens, and the model 300; take one of the same vocabulary")


def test_a_drafter_of_shorter_texts_drafts_in_their_first_part(tmp_path: Path) -> None:
    directory = make_model(tmp_path)
    other = drafter_of(directory, 0.0)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 40}))
    with engine(directory, other, backend="native") as llm:
        sampling = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)
        (output,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], sampling, use_tqdm=False)
        stats = output.metrics
    assert stats is not None
    assert 0 < stats.num_accepted_drafts == stats.num_drafts < 38


def renumbered(directory: Path, other: Path, count: int = 300) -> Path:
    """Write the same model with other ids for its tokens, of which it has so many."""
    order = np.random.default_rng(4).permutation(300)[:count]  # its token i is `order[i]` here
    ids = {int(old): new for new, old in enumerate(order)}
    other.mkdir()
    saved = json.loads((directory / "tokenizer.json").read_text())
    names = {number: token for token, number in saved["model"]["vocab"].items()}
    vocabulary = {names[old]: new for old, new in ids.items() if old in names}
    saved["model"]["vocab"] = vocabulary
    saved["model"]["merges"] = [
        pair
        for pair in saved["model"]["merges"]
        if {*(parts := pair.split() if isinstance(pair, str) else pair), "".join(parts)}
        <= vocabulary.keys()
    ]
    saved["added_tokens"] = [
        {**each, "id": ids[each["id"]]} for each in saved["added_tokens"] if each["id"] in ids
    ]
    (other / "tokenizer.json").write_text(json.dumps(saved))
    config = json.loads((directory / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": len(order)}))
    weights = load_file(directory / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        weights[name] = np.ascontiguousarray(weights[name][order])
    save_file(weights, other / "model.safetensors")
    return other


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "count"), [("native", 300), ("native", 290), ("torch", 300)])
def test_tokens_of_another_vocabulary_are_translated(
    tmp_path: Path, backend: str, count: int
) -> None:
    """A drafter with the weights of the model is never wrong, unless it lacks a token."""
    if backend == "torch":
        pytest.importorskip("torch")
    directory = make_model(tmp_path)
    other = renumbered(directory, tmp_path / "other", count)
    prompts = [{"prompt_token_ids": each} for each in make_prompts()]
    sampling = SamplingParams(temperature=0.7, seed=1, max_tokens=24, ignore_eos=True)
    with engine(directory, other, {"use_heterogeneous_vocab": True}, backend=backend) as llm:
        found = llm.generate(prompts, sampling, use_tqdm=False)
        stats = stats_of(llm)
    with LLM(str(directory), **{**ENGINE, "dtype": "float32"}, backend=backend) as llm:
        plain = llm.generate(prompts, sampling, use_tqdm=False)
    texts = [[*each.outputs[0].token_ids] for each in found]
    assert texts == [[*each.outputs[0].token_ids] for each in plain]
    assert stats.num_drafts > 100
    right = stats.num_accepted_drafts / stats.num_drafts
    assert right == 1.0 if count == 300 else 0.5 < right < 1.0


def test_a_vocabulary_with_nothing_in_common_is_refused(tmp_path: Path) -> None:
    directory = make_model(tmp_path)
    other = renumbered(directory, tmp_path / "other")
    saved = json.loads((other / "tokenizer.json").read_text())
    saved["added_tokens"] = []
    saved["model"]["vocab"] = {"Ā" * (2 + number): number for number in range(290)}
    saved["model"]["merges"] = []
    (other / "tokenizer.json").write_text(json.dumps(saved))
    config = {"model": str(other), "use_heterogeneous_vocab": True}
    with pytest.raises(ConfigError, match="of the model's 300 tokens; take one whose vocabulary"):
        LLM(str(directory), speculative_config=config)
    with pytest.raises(ConfigError, match="or have its tokens translated, with the key"):
        LLM(str(directory), speculative_config={"model": str(other)})
