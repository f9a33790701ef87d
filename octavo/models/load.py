"""Opening of a model: its files become a declared model, a spec and weights, not yet bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from octavo.layers import CausalLM, ModelSpec
from octavo.loader import Checkpoint, CheckpointError, ModelFiles
from octavo.loader.errors import SourceError
from octavo.loader.strict_json import parse_object
from octavo.models.checkpoint_weights import CheckpointWeights, Weights
from octavo.models.config_reader import Config
from octavo.models.generation import GenerationDefaults, defaults_from_gguf, defaults_from_json
from octavo.models.gguf.gguf_weights import GgufWeights
from octavo.models.gguf.to_config import read_config
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


def open_model(source: ModelFiles, max_len: int | None = None) -> OpenedModel:
    """Declare the model and map its weights; no tensor is read yet.

    `max_len` is the longest sequence that will be run, if shorter than the model's own limit.
    """
    checkpoint = source.open()
    if source.is_gguf:
        values = read_config(checkpoint)
        weights: Weights = GgufWeights(checkpoint, values)
    else:
        values = read_json(source.directory / "config.json")
        with _errors_at(source.directory / "config.json"):
            weights = CheckpointWeights(checkpoint, _formats(values))
    with _errors_at(checkpoint.path if source.is_gguf else source.directory / "config.json"):
        config = Config(values, max_len)
        architecture = _architecture(config)
        family = family_of(architecture)
        spec = family.read(config)
        model = family(spec)
    with _errors_at(checkpoint.path if source.is_gguf else source.directory):
        if source.is_gguf:
            generation = defaults_from_gguf(checkpoint.metadata)
        else:
            generation = defaults_from_json(values, _generation_config(source.directory))
    return OpenedModel(architecture, model, spec, weights, generation, checkpoint)


@contextmanager
def _errors_at(path: Path) -> Iterator[None]:
    """Add the path to errors that have none."""
    try:
        yield
    except CheckpointError as error:
        raise error if error.path is not None else error.at(path) from None


def read_json(path: Path) -> dict[str, Any]:
    """Read the JSON object in one of the files beside the weights."""
    try:
        return parse_object(path.read_bytes(), path, path.name)
    except OSError as error:
        raise SourceError(
            f"cannot be read: {error.strerror}", path=path, advice="copy the whole model directory"
        ) from error


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


def _generation_config(directory: Path) -> Mapping[str, Any]:
    path = directory / "generation_config.json"
    return read_json(path) if path.is_file() else {}
