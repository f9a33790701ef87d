"""Adapters with random weights for small models, and the models that they are merged into.

The tensors have the names, shapes and types that PEFT 0.21.2 writes (`save_pretrained` of a model
with a LoraConfig); the settings have all fields that it writes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.adapters.pairs import Limits
from octavo.adapters.read import PEFT_FILE, SETTINGS_FILE, AdapterReader
from octavo.backends.adapter_weights import AdapterWeights
from octavo.backends.stored_rows import StoredRows
from octavo.layers import Linear, Model, Module, StoredTensor
from octavo.loader.mapped_file import MappedFile
from octavo.loader.safetensors import read_safetensors
from octavo.models.build import bind
from octavo.models.needs import find_needs
from tests.loader.make_files import write_safetensors
from tests.models.made_up import MadeUpWeights

Arrays = dict[str, NDArray[Any]]

# What PEFT 0.21.2 writes, beside what an adapter is asked to have.
SETTINGS: Mapping[str, Any] = {
    "alora_invocation_tokens": None,
    "alpha_pattern": {},
    "arrow_config": None,
    "auto_mapping": None,
    "base_model_name_or_path": "a/base",
    "bias": "none",
    "corda_config": None,
    "ensure_weight_tying": False,
    "eva_config": None,
    "exclude_modules": None,
    "fan_in_fan_out": False,
    "inference_mode": True,
    "init_lora_weights": True,
    "kasa_config": None,
    "layer_replication": None,
    "layers_pattern": None,
    "layers_to_transform": None,
    "loftq_config": {},
    "lora_alpha": 8,
    "lora_bias": False,
    "lora_dropout": 0.0,
    "lora_ga_config": None,
    "megatron_config": None,
    "megatron_core": "megatron.core",
    "modules_to_save": None,
    "monteclora_config": None,
    "peft_type": "LORA",
    "peft_version": "0.21.2",
    "qalora_group_size": 16,
    "r": 4,
    "rank_pattern": {},
    "revision": None,
    "target_modules": "all-linear",
    "target_parameters": None,
    "task_type": "CAUSAL_LM",
    "trainable_token_indices": None,
    "use_bdlora": None,
    "use_dora": False,
    "use_qalora": False,
    "use_rslora": False,
    "velora_config": None,
}


class Projection(NamedTuple):
    """A module of a checkpoint that is a projection, or parts of one."""

    name: str
    outputs: int
    inputs: int
    transposed: bool  # its weight is stored [inputs, outputs]


def modules_of(model: Model) -> Iterator[Projection]:
    """Yield the projections of the blocks and the head, as binding reads them."""
    for need in find_needs(model, ()):
        if not isinstance(need.module, Linear) or need.tensor != "weight":
            continue
        for source, shape in zip(need.sources, need.shapes(), strict=True):
            assert isinstance(source, StoredTensor)
            outputs, inputs = shape[::-1] if source.transposed else shape
            name = source.name.removesuffix(".weight")
            yield Projection(name, outputs, inputs, source.transposed)


def make_arrays(
    modules: Sequence[Projection],
    rank_of: Callable[[str], int] = lambda name: 4,
    seed: int = 0,
    dtype: Any = np.float32,
) -> Arrays:
    """Return the tensors of an adapter of these modules."""
    generator, arrays = np.random.default_rng(seed), {}
    for each in modules:
        rank = rank_of(each.name)
        for half, shape in (("A", (rank, each.inputs)), ("B", (each.outputs, rank))):
            values = generator.standard_normal(shape, np.float32) / 8
            arrays[f"base_model.model.{each.name}.lora_{half}.weight"] = values.astype(dtype)
    return arrays


def write_adapter(directory: Path, arrays: Mapping[str, NDArray[Any]], **settings: Any) -> Path:
    """Write an adapter as PEFT does; return the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / PEFT_FILE, arrays, {"format": "pt"})
    (directory / SETTINGS_FILE).write_text(json.dumps({**SETTINGS, **settings}))
    return directory


def read_adapter(model: Model, directory: Path, limits: Limits | None = None) -> AdapterWeights:
    """Read an adapter that `write_adapter` has written."""
    checkpoint = read_safetensors(MappedFile(directory / PEFT_FILE))
    settings = (directory / SETTINGS_FILE).read_bytes()
    return AdapterReader(model, limits or Limits(16)).read(checkpoint, settings)


def merged(
    weights: MadeUpWeights,
    modules: Sequence[Projection],
    arrays: Arrays,
    scale_of: Callable[[str], float],
) -> MadeUpWeights:
    """Return the weights of a model with the adapter in it, by PEFT's own formula."""
    other = MadeUpWeights.__new__(MadeUpWeights)
    other.tensors = dict(weights.tensors)
    for each in modules:
        stem = f"base_model.model.{each.name}"
        down, up = (arrays[f"{stem}.lora_{half}.weight"].astype(np.float32) for half in "AB")
        change = np.float32(scale_of(each.name)) * (up @ down)
        name = f"{each.name}.weight"
        other.tensors[name] = other.tensors[name] + (change.T if each.transposed else change)
    return other


class Collector:
    """A backend that keeps the float32 rows of all weights."""

    def parameter(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> NDArray[Any]:
        return np.concatenate([part.floats() for part in parts])

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> NDArray[Any]:
        return np.stack([np.concatenate([part.floats() for part in parts]) for parts in matrices])


def matrices(model: Model, weights: MadeUpWeights) -> dict[str, NDArray[Any]]:
    """Bind a model; return the matrices of its projections, by path."""
    backend: Any = Collector()
    bind(model, backend, weights)
    found = {}
    for path, module in model.walk():
        if isinstance(module, Linear) and not (model.tied and module is model.head):
            found[path] = module.weight
    return found


def changes(model: Model, adapter: AdapterWeights) -> dict[str, NDArray[np.float32]]:
    """Return what an adapter adds to each projection that it changes, by path."""
    linears = dict(model.walk())
    found = {}
    for path, pairs in adapter.pairs.items():
        linear = linears[path]
        assert isinstance(linear, Linear)
        rows = []
        for part, pair in zip(linear.parts, pairs, strict=True):
            if pair is None:
                rows.append(np.zeros((part.rows, linear.inputs), np.float32))
                continue
            up, down = pair.up.astype(np.float32), pair.down.astype(np.float32)
            assert up.shape == (part.rows, len(down))
            rows.append(np.float32(pair.scale) * (up @ down))
        found[path] = np.concatenate(rows)
    return found
