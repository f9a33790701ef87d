"""Medusa: its drafts are those of the published formula, and wrong files are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM
from octavo.core.config import ConfigError
from octavo.engine.drafting.drafter import layout_of, open_with_drafter
from octavo.loader.errors import CheckpointError
from octavo.options.engine import read_arguments
from octavo.resolve import make_bill
from octavo.runner.speculate.heads import HeadsProposer
from tests.api.tiny import make_model
from tests.runner.speculate.head_files import load, save
from tests.runner.speculate.medusa.files import MEDUSA_FILE, NUM_DRAFTED, as_vllm, make_medusa
from tests.runner.speculate.recorded import proposals_of

# How the files are written: the layers of a head, whether they have a bias, vLLM's prefix (None:
# as FasterDecoding publishes them), and the tokens that heads can propose.
FORMS: dict[str, tuple[int, bool, str | None, int]] = {
    "published": (1, True, None, 300),
    "two layers": (2, True, None, 300),
    "vllm": (1, False, "", 300),
    "prefix": (2, True, "medusa_heads.", 300),
    "token map": (1, False, "", NUM_DRAFTED),
}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("form", FORMS)
def test_drafts_are_those_of_the_published_formula(tmp_path: Path, backend: str, form: str) -> None:
    pytest.importorskip("torch")
    from tests.runner.speculate import head_reference as reference

    layers, has_bias, prefix, own = FORMS[form]
    directory = make_model(tmp_path)
    drafter = make_medusa(tmp_path / "heads", layers=layers, has_bias=has_bias)
    if prefix is not None:
        as_vllm(drafter, prefix, own=own)
    found = proposals_of(directory, drafter, backend, HeadsProposer)
    assert len(found) > 20
    assert {len(proposed) for proposed in found.values()} >= {1, 3}
    copy = drafter
    if prefix is None:
        copy = as_vllm(make_medusa(tmp_path / "copy", layers=layers, has_bias=has_bias))
    target = reference.Target(directory)
    for text, proposed in found.items():
        assert [*proposed] == reference.medusa(copy, target, [*text], len(proposed)), text


Change = Callable[[dict[str, Any], dict[str, np.ndarray]], Any]

WRONG: tuple[tuple[Change, str], ...] = (
    (lambda config, tensors: tensors.pop("1.0.linear.weight"), r"'1\.0\.linear\.weight'"),
    (lambda config, tensors: tensors.pop("1.0.linear.bias"), r"'1\.0\.linear\.bias'"),
    (lambda config, tensors: tensors.pop("2.1.weight"), r"'2\.1\.weight'"),
    (
        lambda config, tensors: tensors.update({"0.1.weight": tensors["0.1.weight"][:290]}),
        r"'0\.1\.weight': has shape \[290, 32\] but the model needs \[300, 32\]",
    ),
    (
        lambda config, tensors: tensors.update({"2.0.linear.weight": np.ones((32, 16))}),
        r"'2\.0\.linear\.weight': has shape",
    ),
    (lambda config, tensors: tensors.update({"more": np.ones(3)}), "'more'"),
    (lambda config, tensors: config.update(medusa_num_heads=4), r"'3\.0\.linear\.weight'"),
    (lambda config, tensors: config.update(medusa_num_heads=65), "medusa_num_heads is 65, and"),
    (lambda config, tensors: config.update(medusa_num_layers=2), r"'0\.1\.linear\.weight'"),
    (lambda config, tensors: config.update(medusa_num_layers=10**6), "is 1,000,000, and at most"),
    (lambda config, tensors: config.update(medusa_num_layers="a"), "medusa_num_layers must be"),
    (lambda config, tensors: config.update(vocab_size=310), "vocab_size is 310, and the model"),
    (lambda config, tensors: config.update(hidden_size=64), "hidden_size is 64, and the model"),
    (lambda config, tensors: config.update(truncated_vocab_size=220), "'token_map'"),
    (
        lambda config, tensors: (
            config.update(truncated_vocab_size=3),
            tensors.update({"token_map": np.array([1, 2, 300])}),
        ),
        "'token_map': leads from 2 to token 300 of 300",
    ),
    (
        lambda config, tensors: (
            config.update(truncated_vocab_size=3),
            tensors.update({"token_map": np.array([1, 2, 2])}),
        ),
        "'token_map': leads from several tokens to the same one",
    ),
    (
        lambda config, tensors: (
            config.update(truncated_vocab_size=3),
            tensors.update({"token_map": np.array([1.0, 2.0, 3.0])}),
        ),
        "'token_map': has the type float64",
    ),
)


def test_wrong_files_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    directory, drafter = make_model(tmp_path), make_medusa(tmp_path / "heads")
    for number, (change, match) in enumerate(WRONG):
        config, tensors = load(drafter, MEDUSA_FILE)
        change(config, tensors)
        made = save(tmp_path / f"wrong {number}", config, tensors)
        with pytest.raises(CheckpointError, match=match):
            LLM(str(directory), speculative_config={"method": "medusa", "model": str(made)})


def test_files_for_another_method_are_refused(tmp_path: Path) -> None:
    directory, drafter = make_model(tmp_path), make_medusa(tmp_path / "heads")
    settings = {"method": "eagle", "model": str(drafter)}
    with pytest.raises(ConfigError, match="method='eagle', and its files are for 'medusa'"):
        LLM(str(directory), speculative_config=settings)


def test_there_are_as_many_drafts_as_heads(tmp_path: Path) -> None:
    """More heads than the configuration states are used, as published files have them."""
    directory, drafter = make_model(tmp_path), make_medusa(tmp_path / "heads")
    config, tensors = load(drafter, MEDUSA_FILE)
    save(drafter, {**config, "medusa_num_heads": 2}, tensors, MEDUSA_FILE)
    for asked, most in ((2, 2), (3, 3), (5, 3)):
        settings = {"model": str(drafter), "num_speculative_tokens": asked}
        with LLM(str(directory), speculative_config=settings) as llm:
            config = llm._runner._model.core.scheduler.kv.config
            assert config.max_ahead == most
            assert config.max_ahead_lag == config.max_model_len  # heads lack nothing


def test_heads_are_counted_with_what_they_take_alone(tmp_path: Path) -> None:
    """Memory that the first step of an engine takes for good is counted once, not for each head."""
    directory, drafter = make_model(tmp_path), make_medusa(tmp_path / "heads")
    for backend in ("native", "torch"):
        found = []
        for settings in ({"method": "ngram"}, {"model": str(drafter)}):
            values = {"speculative_config": settings, "backend": backend, "max_num_seqs": 8}
            asked = read_arguments(str(directory), values)
            _, opened = open_with_drafter(asked)
            found.append(make_bill(asked, opened, layout_of(opened)).step_bytes)
        assert 0 < found[1] - found[0] < 1 << 20
