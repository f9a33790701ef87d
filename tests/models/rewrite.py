"""Writing of an opened model as a directory of dequantised safetensors, for tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from octavo.backends.stored_rows import Floats
from octavo.models.gguf.to_config import read_config
from octavo.models.load import OpenedModel
from octavo.models.needs import find_needs
from octavo.models.weights import Weights


def values_of(weights: Weights, name: str) -> Floats:
    """Return the values of a tensor in its own shape."""
    return weights.rows(name).floats().reshape(weights.shapes()[name])


def write_safetensors(opened: OpenedModel, directory: Path) -> None:
    """Write a GGUF file's model as a checkpoint directory in float32."""
    values = {
        **read_config(opened.checkpoint),
        "model_type": "llama",  # only the reference reads it
        "eos_token_id": list(opened.generation.eos_ids),
    }
    (directory / "config.json").write_text(json.dumps(values))
    weights = opened.weights
    needs = find_needs(opened.model, weights.shapes())
    names = {name for need in needs for source in need.sources for name in need.names(source)}
    tensors = {name: np.ascontiguousarray(values_of(weights, name)) for name in sorted(names)}
    assert all(tensor.dtype == np.float32 for tensor in tensors.values())
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def assert_same(one: OpenedModel, other: OpenedModel) -> None:
    """Check that two opened models have equal specs, end tokens and weights, to the bit."""
    assert one.architecture == other.architecture
    assert one.spec == other.spec
    assert one.generation.eos_ids == other.generation.eos_ids
    for need in find_needs(one.model, one.weights.shapes()):
        for name in (name for source in need.sources for name in need.names(source)):
            ours, theirs = (values_of(opened.weights, name) for opened in (one, other))
            assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32)), name
