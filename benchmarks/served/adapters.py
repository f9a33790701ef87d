"""Adapters (LoRA) with random weights for a real model, in the forms of PEFT and of llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers.models import GGUF_NAMES as TENSOR_NAMES
from octavo.layers import ModelSpec
from octavo.loader import resolve
from octavo.models.load import open_model

DTYPES: dict[str, Any] = {"bfloat16": ml_dtypes.bfloat16, "float32": np.float32}
# The projections of a block of Llama's: in PEFT's names, and in those of GGUF.
GGUF_NAMES = {name: kept for name, kept in TENSOR_NAMES.items() if name.endswith("_proj")}
FACTOR = 2  # alpha by the rank
Arrays = dict[tuple[int, str, str], NDArray[Any]]  # by layer, projection and half


class AdapterMaker:
    """Writes adapters of a model's projections, which differ in the first tensor.

    They are those of all blocks, or of the first few.
    """

    def __init__(
        self, spec: ModelSpec, rank: int, dtype: str = "bfloat16", num_layers: int | None = None
    ) -> None:
        self._spec = spec
        self._num_layers = num_layers or spec.layers
        self._rank = rank
        self._dtype = DTYPES[dtype]
        self._arrays = self._made(np.random.default_rng(rank))

    def _made(self, random: np.random.Generator) -> Arrays:
        arrays: Arrays = {}
        for name, outputs, inputs in projections(self._spec):
            for layer in range(self._num_layers):
                for half, shape in (("A", (self._rank, inputs)), ("B", (outputs, self._rank))):
                    numbers = random.standard_normal(shape, np.float32) * np.float32(0.02)
                    arrays[layer, name, half] = numbers.astype(self._dtype)
        return arrays

    @property
    def num_bytes(self) -> int:
        """The bytes of all tensors of an adapter."""
        return sum(array.nbytes for array in self._arrays.values())

    def tensors(self, number: int) -> Iterator[tuple[int, str, str, NDArray[Any]]]:
        """Yield the layer, the projection, the half and the numbers of each tensor."""
        for at, ((layer, name, half), array) in enumerate(self._arrays.items()):
            if at == 0:
                array = (array.astype(np.float32) + np.float32(number)).astype(self._dtype)
            yield layer, name, half, array

    def write(self, directory: Path, number: int) -> Path:
        """Write adapter `number` as PEFT does; return its directory."""
        from safetensors.numpy import save_file

        directory.mkdir(parents=True)
        tensors = {
            f"base_model.model.model.layers.{layer}.{name}.lora_{half}.weight": array
            for layer, name, half, array in self.tensors(number)
        }
        save_file(tensors, directory / "adapter_model.safetensors", metadata={"format": "pt"})
        settings = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "base",
            "r": self._rank,
            "lora_alpha": FACTOR * self._rank,
            "target_modules": [name.partition(".")[2] for name in GGUF_NAMES],
        }
        (directory / "adapter_config.json").write_text(json.dumps(settings))
        return directory

    def write_gguf(self, path: Path, number: int) -> Path:
        """Write adapter `number` in llama.cpp's form; return its path.

        The rows of queries and keys are not reordered, which random weights do not need.
        """
        import gguf

        writer = gguf.GGUFWriter(path, "llama")
        writer.add_type("adapter")
        writer.add_string("adapter.type", "lora")
        writer.add_float32("adapter.lora.alpha", float(FACTOR * self._rank))
        for layer, name, half, array in self.tensors(number):
            stored = f"blk.{layer}.{GGUF_NAMES[name]}.weight.lora_{half.lower()}"
            # It computes them in the type of the file: F16 is what its converter writes.
            writer.add_tensor(stored, array.astype(np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


def spec_of(model: str) -> ModelSpec:
    """Return the hyper-parameters of a model, by its name or path."""
    return open_model(resolve(model)).spec


def projections(spec: ModelSpec) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the outputs and the inputs of each projection of a block."""
    hidden, ffn = spec.hidden, spec.ffn
    queries, keys = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim
    sizes = (
        *((queries, hidden), (keys, hidden), (keys, hidden), (hidden, queries)),
        *((ffn, hidden), (ffn, hidden), (hidden, ffn)),
    )
    for name, (outputs, inputs) in zip(GGUF_NAMES, sizes, strict=True):
        yield name, outputs, inputs
