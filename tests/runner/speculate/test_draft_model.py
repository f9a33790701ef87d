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
    directory: Path, drafter: Path, keys: dict[str, str] | None = None, **options: Any
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
