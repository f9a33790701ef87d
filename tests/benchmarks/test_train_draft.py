"""The training of a drafter: its steps on a tiny model, and what the engine makes of its files."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from benchmarks import train_draft
from benchmarks.draft_head.prompts import HELD_OUT, make_prompts
from benchmarks.draft_head.texts import read_texts, write_texts
from benchmarks.drafts.prompts import ORDINARY
from tests.api.tiny import make_model
from tests.runner.speculate.head_files import Tensors, load, make_eagle3, save
from tests.runner.speculate.recorded import proposals_of

WORDS = (
    "--answers 24 --tokens 24 --vocabulary 120 --layers 0,1 --steps 40 --rows 150 --rate 0.015 "
    "--threads 1"
)


def make_long_model(directory: Path) -> Path:
    """Write the tiny model with room for the prompts."""
    path = make_model(directory) / "config.json"
    config = json.loads(path.read_text())
    longer = {"model_type": "llama", "max_position_embeddings": 1024}
    path.write_text(json.dumps(config | longer))
    return directory


def test_prompts_differ_and_none_measures_the_drafter() -> None:
    prompts = make_prompts(1000, seed=1)
    assert len(set(prompts)) == 1000
    assert not {*prompts} & {*HELD_OUT, *ORDINARY}
    assert make_prompts(100, seed=1) == prompts[:100] != make_prompts(100, seed=2)
    with pytest.raises(SystemExit, match="--answers 10001: the templates give"):
        make_prompts(10_001, seed=1)


def test_answers_that_were_broken_off_are_continued(tmp_path: Path) -> None:
    model, path = make_long_model(tmp_path), tmp_path / "texts.jsonl"
    sizes = {"answers": 6, "tokens": 8, "seed": 1, "share": (1, 2)}
    write_texts(str(model), path, **sizes)  # type: ignore[arg-type]
    whole = path.read_text()
    texts = [*read_texts(path)]
    assert len(texts) == 3
    lines = whole.splitlines(keepends=True)
    path.write_text(lines[0] + lines[1][:20])
    write_texts(str(model), path, **sizes)  # type: ignore[arg-type]
    assert path.read_text() == whole


@pytest.mark.slow
def test_no_texts_to_train_with_are_refused() -> None:
    """A single text leaves nothing: the first one is kept apart."""
    pytest.importorskip("torch")
    from benchmarks.draft_head.train import Settings, batches

    with pytest.raises(SystemExit, match="--answers"):
        next(batches([], Settings(steps=1, chain=1, rows=9, rate=0.1, seed=0)))


@pytest.mark.slow
def test_a_trained_drafter_is_written_loads_and_proposes_what_torch_does(tmp_path: Path) -> None:
    """The loss falls; the engine's proposals are the likeliest of torch, row by row."""
    pytest.importorskip("torch")
    from benchmarks.draft_head import train
    from tests.runner.speculate import head_reference as reference

    model = make_long_model(tmp_path)
    asked = train_draft.arguments([str(tmp_path / "run"), *WORDS.split()])
    losses = train_draft.train_head(asked, model)
    assert len(losses) == 40
    # Most of it is the entropy of what the model draws, which stays.
    assert np.mean(losses[-8:]) < np.mean(losses[:8]) - 0.3

    head, kept = asked.directory / "head", asked.directory / "training"
    written = (head / "model.safetensors").read_bytes()
    config, tensors = load_head(head)
    assert tensors["lm_head.weight"].shape == (120, 32)
    wide = save(tmp_path / "wide", config, tensors)  # in float32, as the reference reads it
    found = proposals_of(model, head, "native")
    assert len(found) > 20
    target = reference.Target(model)
    for text, proposed in found.items():
        assert [*proposed] == reference.eagle3(wide, target, [*text], len(proposed)), text

    # A run that has ended has nothing left to do; one that was stopped goes on.
    assert train_draft.train_head(asked, model) == []
    assert (head / "model.safetensors").read_bytes() == written
    kept.unlink()
    with (
        mock.patch.object(train, "SAVED", 15),
        mock.patch.object(train, "_keep", stopping(2)),
        pytest.raises(KeyboardInterrupt),
    ):
        train_draft.train_head(asked, model)
    assert train_draft.train_head(asked, model) == losses[15:]
    asked.seed = 2
    with pytest.raises(SystemExit, match=r"--seed is 2, and .* was begun with 1"):
        train_draft.train_head(asked, model)
    assert (head / "model.safetensors").read_bytes() == written


def stopping(number: int) -> Callable[..., None]:
    """Return what keeps the state of a training, and ends it at the call of this number."""
    from benchmarks.draft_head import train

    keep, calls = train._keep, count(1)

    def stop(*state: Any) -> None:
        if next(calls) == number:
            raise KeyboardInterrupt
        keep(*state)

    return stop


def load_head(directory: Path) -> tuple[dict[str, Any], Tensors]:
    """Return the configuration and the tensors of a drafter, in float32."""
    from safetensors.torch import load_file

    tensors = load_file(directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    return config, {
        name: (each.float() if each.is_floating_point() else each).numpy()
        for name, each in tensors.items()
    }


@pytest.mark.slow
def test_chains_in_training_are_those_of_the_published_forward_pass(tmp_path: Path) -> None:
    """The rows of a text all begin chains at once, each as if it began there alone."""
    pytest.importorskip("torch")
    import torch

    from benchmarks.draft_head import head as heads
    from tests.runner.speculate import head_reference as reference

    model, drafter = make_model(tmp_path), make_eagle3(tmp_path / "head")
    config, tensors = load(drafter)
    save(drafter, {**config, "norm_before_residual": True}, tensors)
    sizes = heads.Sizes(32, 48, 4, 2, 8, 2, 220, 10_000.0)
    head = heads.Head(sizes)
    loaded = {name: torch.from_numpy(each) for name, each in tensors.items()}
    head.load_state_dict({name: loaded[name] for name in head.state_dict()})
    target = reference.Target(model)
    texts = [[5, 6, 7, 8, 9, 30, 31], [11, 12, 40, 41, 42, 43, 44, 45, 46]]
    proposed = [reference.eagle3(drafter, target, text, 3) for text in texts]
    whole = [text + drafts for text, drafts in zip(texts, proposed, strict=True)]
    read = [torch.cat([target.states(each)[layer] for layer in (0, 1)], -1) for each in whole]
    first = [4, 2]
    rows = heads.Rows([len(text) - 1 for text in whole], first)
    tokens = [torch.tensor(text) for text in whole]
    later = [
        torch.cat(
            [each[start + 1 :].roll(-step) for each, start in zip(tokens, first, strict=True)]
        )
        for step in (1, 2)
    ]
    embedded = [target.embedding[each] for each in (torch.cat([t[1:] for t in tokens]), *later)]
    with torch.no_grad():
        scores = head.chains(torch.cat([each[:-1] for each in read]), embedded, rows)
    begun = 0
    for text, start, drafts in zip(texts, first, proposed, strict=True):
        row = begun + len(text) - 2 - start
        places = [int(each[row].argmax()) for each in scores]
        assert [place + int(loaded["d2t"][place]) for place in places] == drafts
        begun += len(text) + 3 - 1 - start
