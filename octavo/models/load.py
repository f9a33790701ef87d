"""Opening of a model: its files become a declared model, a spec and weights, not yet bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from octavo.layers import CausalLM, ModelSpec
from octavo.loader import Checkpoint, ModelFiles
from octavo.loader.errors import errors_at
from octavo.loader.strict_json import read_object
from octavo.models.build import checked_needs
from octavo.models.checkpoint_weights import CheckpointWeights, Weights, named_as_declared
from octavo.models.config_reader import Config
from octavo.models.generation import GenerationDefaults, defaults_from_gguf, defaults_in
from octavo.models.gguf.gguf_weights import GgufWeights
from octavo.models.gguf.to_config import read_config, stored_names
from octavo.models.pooling import PoolingFacts
from octavo.models.registry import family_of
from octavo.quant.registry import formats_for
from octavo.quant.weight_format import WeightFormat


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """A model without a backend; the next step is `build.bind(model, backend, weights)`."""

    architecture: str
    model: CausalLM
    spec: ModelSpec
    weights: Weights
    generation: GenerationDefaults
    checkpoint: Checkpoint
    pooling: PoolingFacts


def open_model(source: ModelFiles, max_len: int | None = None) -> OpenedModel:
    """Declare the model, map its weights, and check that they belong together; read no tensor.

    `max_len` is the longest sequence that will be run, if shorter than the model's own limit.
    """
    checkpoint = source.open()
    if source.is_gguf:
        values = read_config(checkpoint)
        weights: Weights = GgufWeights(checkpoint, values)
    else:
        values = read_object(source.directory / "config.json")
        with errors_at(source.directory / "config.json"):
            weights = CheckpointWeights(checkpoint, _formats(values))
    stated_in = checkpoint.path if source.is_gguf else source.directory / "config.json"
    with errors_at(stated_in):
        config = Config(values, max_len, stored_names(checkpoint) if source.is_gguf else None)
        architecture = _architecture(config)
        family = family_of(architecture)
        spec = family.read(config)
        model = family(spec)
        checked_needs(model, named_as_declared(weights, model))
    if source.is_gguf:
        with errors_at(checkpoint.path):
            generation = defaults_from_gguf(checkpoint.metadata)
    else:
        generation = defaults_in(source.directory, values)
    pooling = PoolingFacts(width=spec.hidden)
    return OpenedModel(architecture, model, spec, weights, generation, checkpoint, pooling)


def _architecture(config: Config) -> str:
    names = config.strings("architectures")
    if not names:
        return config.string("architectures")  # raises: it is missing
    return names[0]


def _formats(values: Mapping[str, Any]) -> Sequence[WeightFormat]:
    """Return the formats in which the weights may be stored."""
    config = Config(values)
    key = "quantization_config"
    return formats_for(config.part(key) if config.has(key) else None)
