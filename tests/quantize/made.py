"""Float models to quantise: made-up weights in a directory, and the reading of a result."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from octavo.layers import Model
from octavo.loader import resolve
from octavo.models.config_reader import Config
from octavo.models.load import open_model
from octavo.models.registry import family_of
from octavo.quantize.plan import MAX_SHARD_BYTES, Plan, make_plan
from octavo.quantize.run import quantize
from octavo.quantize.types import target_of
from tests.api.tiny import make_tokenizer_files
from tests.loader.make_files import write_safetensors
from tests.models.made_up import CONFIGS, SIZES, MadeUpWeights

BF16 = ml_dtypes.bfloat16
# Whose matrices divide into groups of 32.
DIVISIBLE = {**SIZES, "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96}
# Type → size of groups to ask for, so that it fits those sizes.
TYPES: dict[str, int | None] = {
    "w4a16": 32,
    "w8a16": None,
    "w8a8": None,
    "fp8": None,
    "nvfp4": None,
    "mxfp4": None,
}


def write_model(
    directory: Path,
    architecture: str = "LlamaForCausalLM",
    kind: DTypeLike = BF16,
    change: Mapping[str, NDArray[Any]] | None = None,
    **more: Any,
) -> Path:
    """Write a float model with a tokenizer; `change` replaces or adds tensors."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {**CONFIGS.get(architecture, {}), **DIVISIBLE, **more}
    config["architectures"] = [architecture]
    made = MadeUpWeights(make_from(config)).tensors
    tensors = {name: np.ascontiguousarray(values).astype(kind) for name, values in made.items()}
    write_safetensors(directory / "model.safetensors", {**tensors, **(change or {})})
    (directory / "config.json").write_text(json.dumps(config))
    make_tokenizer_files(directory)
    return directory


def make_from(config: dict[str, Any]) -> Model:
    """Declare the model of a config.json."""
    family = family_of(config["architectures"][0])
    return family(family.read(Config(config)))


class Quiet:
    """A receiver of progress that remembers what it was given."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def show(self, done: int, total: int) -> None:
        self.seen.append((done, total))


class Killed(BaseException):
    """A stand-in for the death of the process."""


class Killing(Quiet):
    """A receiver that ends the run at some call."""

    def __init__(self, stop: int) -> None:
        super().__init__()
        self._stop = stop

    def show(self, done: int, total: int) -> None:
        super().show(done, total)
        if len(self.seen) == self._stop:
            raise Killed


def plan_of(
    model: Path, to: str, group_size: int | None = None, shard_bytes: int = MAX_SHARD_BYTES
) -> Plan:
    """Plan with the sizes of groups that fit, unless another one is asked for."""
    size = group_size or TYPES[to]
    return make_plan(resolve(str(model)), target_of(to), size, shard_bytes)


def made_of(model: Path, to: str, output: Path, shard_bytes: int = MAX_SHARD_BYTES) -> Plan:
    """Quantise a model in two threads."""
    plan = plan_of(model, to, shard_bytes=shard_bytes)
    quantize(plan, output, 2, Quiet())
    return plan


def values_in(directory: Path) -> dict[str, NDArray[np.float32]]:
    """Read all tensors of a model as the engine does, by the names of its family."""
    weights = open_model(resolve(str(directory))).weights
    return {
        name: weights.rows(name).floats().reshape(shape) for name, shape in weights.shapes().items()
    }


def files_in(directory: Path) -> dict[str, bytes]:
    """Read all files below a directory, by their paths inside."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in directory.rglob("*")
        if path.is_file()
    }
