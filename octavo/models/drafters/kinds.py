"""The kinds of drafters that read hidden states, and how their files are recognised."""

from __future__ import annotations

from collections.abc import Callable, Collection

from octavo.layers import Model, ModelSpec
from octavo.loader import Checkpoint, ModelFiles
from octavo.loader.errors import errors_at
from octavo.loader.strict_json import read_object
from octavo.models.build import checked_needs
from octavo.models.checkpoint_weights import CheckpointWeights
from octavo.models.config_reader import Config
from octavo.models.drafters import dflash, eagle, eagle3, medusa
from octavo.models.drafters.reading import DFLASH_CONFIG, SPECULATORS, plain_values
from octavo.models.load import OpenedModel, formats_in, quantization_in
from octavo.models.weights import Weights, named_as_declared

Declare = Callable[[Config, ModelSpec, Weights, Checkpoint], tuple[Model, Weights]]

# By the method that uses them.
KINDS: dict[str, Declare] = {
    "eagle3": eagle3.declare,
    "eagle": eagle.declare,
    "medusa": medusa.declare,
    "dflash": dflash.declare,
}
_PREFIXES = ("", "model.")
_LAYERS = ("midlayer.", "layers.0.")


def kind_of_files(source: ModelFiles, checkpoint: Checkpoint) -> str | None:
    """Return the method for which a model's files are; None for a model that drafts by itself."""
    if source.is_gguf:
        return None
    values = read_object(source.directory / "config.json")
    stated = values.get(SPECULATORS)
    if isinstance(stated, str):
        return stated
    stated = values.get("architectures")
    architectures = stated if isinstance(stated, list) else []
    if "DFlash2DraftModel" in architectures:
        return "dflash2"
    if DFLASH_CONFIG in values or "DFlashDraftModel" in architectures:
        return "dflash"  # its tensors are named as EAGLE's are
    return _kind_of(checkpoint.tensors)


def _kind_of(names: Collection[str]) -> str | None:
    if medusa.is_medusa(names):
        return "medusa"
    if not any(f"{prefix}fc.weight" in names for prefix in _PREFIXES):
        return None
    places = [prefix + layer for prefix in _PREFIXES for layer in _LAYERS]
    return "eagle3" if any(f"{each}hidden_norm.weight" in names for each in places) else "eagle"


def open_drafter(
    source: ModelFiles, checkpoint: Checkpoint, method: str, target: OpenedModel
) -> OpenedModel:
    """Declare the drafter, map its weights, and check that they belong together and to the model.

    As with `open_model`, no weight is read.
    """
    path = source.directory / "config.json"
    with errors_at(path):
        values = plain_values(read_object(path))
        config = Config(values)
        stored = CheckpointWeights(checkpoint, formats_in(values))
        model, weights = KINDS[method](config, target.spec, stored, checkpoint)
        checked_needs(model, named_as_declared(weights, model))
    facts = target.generation, checkpoint, target.pooling
    found = quantization_in(values)
    return OpenedModel(method, model, model.spec, weights, *facts, heads={}, quantization=found)
