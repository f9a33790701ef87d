"""EAGLE: its drafts are those of the published forward pass, and wrong files are refused."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from octavo import LLM
from octavo.core.config import ConfigError
from octavo.layers import Features
from octavo.loader import resolve
from octavo.loader.errors import CheckpointError
from octavo.models.drafters.kinds import open_drafter
from octavo.models.load import open_model
from tests.api.tiny import make_model
from tests.runner.speculate.head_files import (
    add_layers,
    as_speculators,
    load,
    make_eagle,
    make_eagle3,
    save,
)
from tests.runner.speculate.recorded import proposals_of

FORMS = ("plain", "speculators", "window", "eagle", "embeds")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "form"),
    [
        *product(("native", "torch"), FORMS),
        ("native", "three layers"),
        ("torch", "two of eagle"),
    ],
)
def test_drafts_are_those_of_the_published_forward_pass(
    tmp_path: Path, backend: str, form: str
) -> None:
    pytest.importorskip("torch")
    from tests.runner.speculate import head_reference as reference

    directory, head = make_model(tmp_path), tmp_path / "head"
    drafts: Callable[..., list[int]] = reference.eagle3
    if form in ("plain", "window"):
        drafter = make_eagle3(head)
        if form == "window":
            config, tensors = load(drafter)
            save(drafter, {**config, "sliding_window": 3}, tensors)
    elif form == "speculators":
        drafter = as_speculators(make_eagle3(head), norm_before_residual=True)
        drafts = partial(reference.eagle3, layer="layers.0")
    elif form == "three layers":
        drafter = add_layers(make_eagle3(head), 3)
    else:
        drafter = make_eagle(head, bias=form == "eagle", embeds=form == "embeds")
        if form == "two of eagle":
            add_layers(drafter, 2)
        drafts = reference.eagle
    found = proposals_of(directory, drafter, backend)
    # A drafter with a window cannot catch up: what it would have to read is gone.
    assert len(found) > (5 if form == "window" else 20)
    target = reference.Target(directory)
    for text, proposed in found.items():
        assert [*proposed] == drafts(drafter, target, [*text], len(proposed)), text


Change = Callable[[dict[str, Any], dict[str, np.ndarray]], Any]

WRONG: tuple[tuple[Change, str], ...] = (
    (lambda config, tensors: tensors.pop("fc.weight"), "'fc.weight'"),
    (lambda config, tensors: tensors.pop("midlayer.self_attn.k_proj.weight"), "k_proj.weight"),
    (
        lambda config, tensors: tensors.update({"fc.weight": tensors["fc.weight"][:, :48]}),
        r"'fc.weight': has shape \[32, 48\] but the model needs \[32, 64\]",
    ),
    (
        lambda config, tensors: tensors.update({"norm.weight": tensors["norm.weight"][:30]}),
        "'norm.weight'",
    ),
    (lambda config, tensors: tensors.update({"more": tensors["norm.weight"]}), "'more'"),
    (lambda config, tensors: tensors.pop("d2t"), "'d2t'"),
    (
        lambda config, tensors: tensors.update({"d2t": tensors["d2t"] + 200}),
        "'d2t': leads from .* of 300",
    ),
    (
        lambda config, tensors: tensors.update({"d2t": -np.arange(220)}),
        "'d2t': leads from several tokens to the same one",
    ),
    (
        lambda config, tensors: tensors.update({"d2t": tensors["d2t"].astype(np.float32)}),
        "'d2t': has the type float32",
    ),
    (
        lambda config, tensors: tensors.update({"t2d": ~tensors["t2d"]}),
        "'t2d': names other tokens than 'd2t'",
    ),
    (lambda config, tensors: config.update(vocab_size=310), "vocab_size is 310, and the model"),
    (lambda config, tensors: config.update(target_hidden_size=64), "target_hidden_size is 64, and"),
    (lambda config, tensors: config.update(hidden_size=64), "hidden_size is 64, and the model"),
    (lambda config, tensors: config.update(num_hidden_layers=17), "num_hidden_layers is 17; draf"),
    (lambda config, tensors: config.update(num_hidden_layers=2), "layers.1.input_layernorm.weight"),
    (
        lambda config, tensors: config.pop("eagle_aux_hidden_state_layer_ids"),
        "layer_ids is missing, and has no default for a model of 2 layers",
    ),
    (
        lambda config, tensors: config.update(eagle_aux_hidden_state_layer_ids=[0, 2]),
        "must be layers of the model, from 0 to 1",
    ),
    (
        lambda config, tensors: config.update(eagle_aux_hidden_state_layer_ids=[1, 0]),
        "must come in their order",
    ),
)


def test_wrong_files_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    directory, drafter = make_model(tmp_path), make_eagle3(tmp_path / "head")
    for number, (change, match) in enumerate(WRONG):
        config, tensors = load(drafter)
        change(config, tensors)
        made = save(tmp_path / f"wrong {number}", config, tensors)
        settings = {"method": "eagle3", "model": str(made)}
        if number == 0:  # which files these are shows in this tensor
            settings["method"] = "auto"
            config["speculators_model_type"] = "eagle3"
            save(made, config, tensors)
        with pytest.raises((CheckpointError, ConfigError), match=match):
            LLM(str(directory), speculative_config=settings)


def test_layers_may_be_named_by_what_they_read_or_by_what_they_give(tmp_path: Path) -> None:
    """Inside `eagle_config`, the ids are those of the layers before."""
    target = open_model(resolve(str(make_model(tmp_path))), None)
    config, tensors = load(make_eagle3(tmp_path / "head"))
    tensors["fc.weight"] = tensors["fc.weight"][:, :32].copy()
    key = "eagle_aux_hidden_state_layer_ids"
    config.pop(key)

    def layers_of(**ids: Any) -> tuple[int, ...]:
        made = save(tmp_path / "made", {**config, **ids}, tensors)
        source = resolve(str(made))
        features = open_drafter(source, source.open(), "eagle3", target).model.features
        assert isinstance(features, Features)
        return features.layers

    assert layers_of(eagle_config={key: [0]}) == layers_of(**{key: [1]}) == (1,)
    assert layers_of(eagle_config={key: [0]}, **{key: [0]}) == (0,)
    with pytest.raises(CheckpointError, match="must be layers of the model, from 0 to 0"):
        layers_of(eagle_config={key: [1]})


def test_files_for_another_method_are_refused(tmp_path: Path) -> None:
    directory, drafter = make_model(tmp_path), make_eagle3(tmp_path / "head")
    for model, method, match in (
        (drafter, "draft_model", "method='draft_model', and its files are for 'eagle3'"),
        (directory, "eagle3", "method='eagle3', and its files are a model that drafts by itself"),
    ):
        with pytest.raises(ConfigError, match=match):
            LLM(str(directory), speculative_config={"method": method, "model": str(model)})
    config, tensors = load(drafter)
    save(drafter, {**config, "speculators_model_type": "mlp"}, tensors)
    with pytest.raises(ConfigError, match="its files are for the method 'mlp', and there is"):
        LLM(str(directory), speculative_config={"model": str(drafter)})


def test_wrong_files_of_the_first_eagle_are_refused(tmp_path: Path) -> None:
    directory, drafter = make_model(tmp_path), make_eagle(tmp_path / "head")
    changes: tuple[tuple[Change, str], ...] = (
        (lambda config, tensors: tensors.pop("layers.0.mlp.up_proj.weight"), "up_proj.weight"),
        (
            lambda config, tensors: tensors.update({"fc.weight": tensors["fc.weight"][:, :60]}),
            r"'fc.weight': has shape \[32, 60\] but the model needs \[32, 64\]",
        ),
        (lambda config, tensors: tensors.update({"norm.weight": np.ones(32)}), "'norm.weight'"),
        (lambda config, tensors: config.update(vocab_size=310), "vocab_size is 310, and the model"),
        (lambda config, tensors: config.update(hidden_size=64), "hidden_size is 64, and the mod"),
    )
    for number, (change, match) in enumerate(changes):
        config, tensors = load(drafter)
        change(config, tensors)
        made = save(tmp_path / f"wrong {number}", config, tensors)
        with pytest.raises(CheckpointError, match=match):
            LLM(str(directory), speculative_config={"model": str(made)})
