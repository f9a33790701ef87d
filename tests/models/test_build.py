"""A checkpoint that does not fit is refused before anything of it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file

from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch.backend import TorchBackend
from octavo.layers import CausalLM, Embedding, Linear, Model, Module, TensorDeclaration
from octavo.layers.weight_names import WeightSource
from octavo.loader import resolve
from octavo.loader.errors import TensorMismatchError
from octavo.models.build import bind
from octavo.models.checkpoint_weights import CheckpointWeights
from octavo.models.config_reader import ConfigurationError
from octavo.models.needs import find_needs
from tests.models.made_up import MadeUpWeights, make_model

Tensors = dict[str, NDArray[np.float32]]
GATE = "model.layers.1.mlp.gate_proj.weight"
EXPERT = "model.layers.1.mlp.experts.2.up_proj.weight"


class Unread(CheckpointWeights):
    """A checkpoint whose names and shapes can be read, but whose tensors cannot."""

    def rows(self, name: str) -> StoredRows:
        raise AssertionError(f"{name} is read before all is checked")


def bind_file(
    architecture: str,
    directory: Path,
    change: Callable[[Tensors], object],
    kind: type[CheckpointWeights] = Unread,
) -> Model:
    """Bind a model to a file of its own weights, changed."""
    model = make_model(architecture)
    tensors = dict(MadeUpWeights(model).tensors)
    change(tensors)
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    bind(model, TorchBackend(), kind(resolve(str(directory)).open()))
    return model


def halved(name: str) -> Callable[[Tensors], object]:
    return lambda tensors: tensors.update({name: tensors[name][:-1].copy()})


REFUSED: dict[str, tuple[str, Callable[[Tensors], object], str]] = {
    "a projection is missing": (
        "LlamaForCausalLM",
        lambda tensors: tensors.pop(GATE),
        f"1 of the [0-9]+ tensors the model needs are missing: '{GATE}'",
    ),
    "an expert is missing": (
        "Qwen2MoeForCausalLM",
        lambda tensors: tensors.pop(EXPERT),
        f"1 of the [0-9]+ tensors the model needs are missing: '{EXPERT}'",
    ),
    "all experts are missing": (
        "Qwen2MoeForCausalLM",
        lambda tensors: [tensors.pop(name) for name in list(tensors) if ".experts." in name],
        r"18 of the [0-9]+ tensors .* 'model.layers.0.mlp.experts.0.gate_proj.weight'",
    ),
    "a projection is of another size": (
        "LlamaForCausalLM",
        halved(GATE),
        r"gate_proj.weight': has shape \[47, 32\] but the model needs \[48, 32\]: 6,016 bytes",
    ),
    "an expert is of another size": (
        "Qwen2MoeForCausalLM",
        halved(EXPERT),
        r"experts.2.up_proj.weight': has shape \[15, 32\] but the model needs \[16, 32\]",
    ),
    "a transposed weight is the right way round": (
        "GPT2LMHeadModel",
        lambda tensors: tensors.update(
            {name: array.T.copy() for name, array in tensors.items() if "mlp.c_fc.weight" in name}
        ),
        r"c_fc.weight': has shape \[128, 32\] but the model needs \[32, 128\]",
    ),
    "a norm of heads has one too few": (
        "StableLmForCausalLM",
        lambda tensors: tensors.pop("model.layers.0.self_attn.k_layernorm.norms.1.weight"),
        "k_layernorm.norms.1.weight",
    ),
    "there is more than the model uses": (
        "LlamaForCausalLM",
        lambda tensors: tensors.update(
            {"model.layers.2.mlp.gate_proj.weight": np.zeros((2, 3), np.float32)}
        ),
        r"1 tensors that the model does not use: 'model.layers.2.mlp.gate_proj.weight'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_mismatch_is_refused_before_anything_is_read(name: str, tmp_path: Path) -> None:
    architecture, change, message = REFUSED[name]
    with pytest.raises(TensorMismatchError, match=message):
        bind_file(architecture, tmp_path, change)


def test_a_matching_checkpoint_is_read(tmp_path: Path) -> None:
    """The check passes, so that the first read fails."""
    with pytest.raises(AssertionError, match="is read before all is checked"):
        bind_file("LlamaForCausalLM", tmp_path, lambda tensors: None)


def test_ignored_tensors_may_be_present(tmp_path: Path) -> None:
    """A checkpoint may contain a tied head, and frequencies that the config determines."""
    extra = {
        "lm_head.weight": np.zeros((96, 32), np.float32),
        "model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4, np.float32),
    }
    model = bind_file(
        "LlamaForCausalLM", tmp_path, lambda tensors: tensors.update(extra), CheckpointWeights
    )
    assert model.head is not None
    assert model.head.weight is model.embed.weight


class Extra(Module):
    """A layer with an optional tensor."""

    def tensors(self) -> dict[str, TensorDeclaration]:
        return {"scale": TensorDeclaration((3,), optional=True)}


class MadeUp(CausalLM):
    """The smallest model that can be bound."""

    def __init__(self, table: Mapping[str, WeightSource]) -> None:
        self.embed = Embedding(4, 3)
        self.head = Linear(3, 4)
        self.extra = Extra()
        self._table = table

    def weights(self) -> Mapping[str, WeightSource]:
        return self._table


TABLE: dict[str, WeightSource] = {"embed": "embed", "head": "head", "extra": "extra"}


def test_an_optional_tensor_may_be_absent() -> None:
    model = MadeUp(TABLE)
    assert [need.tensor for need in find_needs(model, {"extra.scale"})] == ["weight"] * 2 + [
        "scale"
    ]
    model = MadeUp(TABLE)
    assert [need.tensor for need in find_needs(model, ())] == ["weight"] * 2
    assert vars(model.extra)["scale"] is None


def test_a_layer_without_a_name_is_reported_as_a_defect() -> None:
    table = {name: source for name, source in TABLE.items() if name != "head"}
    with pytest.raises(ConfigurationError, match=r"head\.weight has no entry in the family"):
        list(find_needs(MadeUp(table), ()))
