"""Opening of a model: its files become a declared model, a spec and weights, not yet bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from octavo.layers import Model, ModelSpec
from octavo.loader import Checkpoint, ModelFiles
from octavo.loader.errors import errors_at
from octavo.loader.strict_json import read_object
from octavo.model_facts import GenerationDefaults, PoolingFacts, Task
from octavo.models.build import checked_needs
from octavo.models.config_reader import Config, ConfigurationError
from octavo.models.generation import defaults_from_gguf, defaults_in
from octavo.models.registry import ENCODERS, kind_of
from octavo.models.weights import Weights, named_as_declared

if TYPE_CHECKING:
    from octavo.models.pooling_heads import PoolingHead
    from octavo.models.sentence_files import SentenceModel
    from octavo.quant.weight_format import WeightFormat

# Tensors behind the blocks of decoders that serve other tasks.
BEHIND_DECODERS = ("lm_head.", "score.")
_CONFIG, _MODELOPT_CONFIG = "config.json", "hf_quant_config.json"


class OpenedModel(Struct, frozen=True):
    """A model without a backend; the next step is `build.bind(model, backend, weights)`."""

    architecture: str
    model: Model
    spec: ModelSpec
    weights: Weights
    generation: GenerationDefaults
    checkpoint: Checkpoint
    pooling: PoolingFacts
    heads: Mapping[str, PoolingHead]  # what follows pooling, by core/pooling.py's names
    quantization: str | None = None  # the format of the files, if the weights are quantised
    drafter: OpenedModel | None = None  # a second model of the same vocabulary


def open_model(
    source: ModelFiles,
    max_len: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    checkpoint: Checkpoint | None = None,
    ids: Sequence[int] | None = None,
) -> OpenedModel:
    """Declare the model, map its weights, and check that they belong together.

    Without files of weights, they are made. Only the small tensors behind pooling are read.
    `max_len` is the longest sequence that will be run, if shorter than the model's own limit;
    `overrides` replace values of its config.json. `checkpoint` is that of the source if it has been
    opened already. With `ids`, token i is the one with the id `ids[i]` in the files.
    """
    if checkpoint is None:
        checkpoint = source.open()
    weights: Weights | None = None
    if source.is_gguf:
        # Here, since other models need none of it.
        from octavo.models.gguf.gguf_weights import GgufWeights
        from octavo.models.gguf.to_config import read_config, stored_names

        values = merged(read_config(checkpoint), overrides or {})
        weights = GgufWeights(checkpoint, values)
    else:
        values = merged(_read_config(source.directory), overrides or {})
    if not source.is_gguf and source.weights:
        from octavo.models.checkpoint_weights import CheckpointWeights

        with errors_at(source.directory / _CONFIG):
            weights = CheckpointWeights(checkpoint, formats_in(values))
    sentence = None if source.is_gguf else _sentence_model_in(source.directory)
    stated_in = checkpoint.path if source.is_gguf else source.directory / _CONFIG
    with errors_at(stated_in):
        stored = stored_names(checkpoint) if source.is_gguf else None
        architecture = _architecture(Config(values, max_len, stored))
        kind = kind_of(architecture)
        config = Config({**values, "architectures": [kind.declared]}, max_len, stored)
        spec = kind.family.read(config)
        if kind.base not in ENCODERS and not config.boolean("is_causal", True):
            raise ConfigurationError(
                "config: is_causal = False makes an encoder of this decoder, which is not supported"
            )
        if sentence is not None or not kind.generates:
            spec = replace(spec, has_head=False)
        if ids is not None:
            spec = replace(spec, vocabulary=len(ids))
        model = kind.family(spec)
        weights = _suited(weights or _made_weights(model, config), model, ids)
        if not spec.has_head:
            model.ignored = (*model.ignored, *(f"{name}*" for name in BEHIND_DECODERS))
            if kind.base not in ENCODERS:
                model.renames = (*model.renames, *_prefixes(model, weights))
        named = named_as_declared(weights, model)
        checked_needs(model, named)
        facts, heads = _generating(spec)
        if sentence is not None or not kind.generates:
            from octavo.models.read_pooling import read_pooling

            facts, heads = read_pooling(config, model, kind, sentence, named, source.directory)
    if sentence is not None and sentence.max_len is not None:
        spec = replace(spec, max_len=min(spec.max_len, sentence.max_len))
    if source.is_gguf:
        with errors_at(checkpoint.path):
            generation = defaults_from_gguf(checkpoint.metadata)
    else:
        generation = defaults_in(source.directory, values)
    format = "gguf" if source.is_gguf else quantization_in(values) if source.weights else None
    read = weights, generation, checkpoint, facts, heads
    return OpenedModel(architecture, model, spec, *read, format)


def _made_weights(model: Model, config: Config) -> Weights:
    """Return weights of the model's shapes, in the type that its configuration names."""
    from octavo.models.made_weights import MadeWeights

    return MadeWeights(model, config.string("dtype", config.string("torch_dtype", "bfloat16")))


def _suited(weights: Weights, model: Model, ids: Sequence[int] | None) -> Weights:
    """Return weights for the ids that tokens are to have; None: those of the files."""
    if ids is None:
        return weights
    from octavo.models.translated_weights import TranslatedWeights

    return TranslatedWeights(weights, model, ids)


def _sentence_model_in(directory: Path) -> SentenceModel | None:
    """Read the files of sentence-transformers, if the model has some."""
    from octavo.models.sentence_files import sentence_model_in

    return sentence_model_in(directory)


def _generating(spec: ModelSpec) -> tuple[PoolingFacts, Mapping[str, PoolingHead]]:
    """Return what a decoder serves whose files say no more of it: text, and its last state."""
    tasks: tuple[Task, ...] = ("generate", "embed") if spec.has_head else ("embed",)
    return PoolingFacts(tasks, "last", width=spec.hidden), {}


def configurations(source: ModelFiles) -> tuple[Path, ...]:
    """Return the files that, if they are there, say how the weights are computed with."""
    names = () if source.is_gguf else (_CONFIG, _MODELOPT_CONFIG)
    return tuple(source.directory / name for name in names)


def _read_config(directory: Path) -> dict[str, Any]:
    """Read a config.json, and ModelOpt's own file if it has no quantization_config."""
    values, beside = read_object(directory / _CONFIG), directory / _MODELOPT_CONFIG
    if values.get("quantization_config") is None and beside.exists():
        values["quantization_config"] = {**read_object(beside), "quant_method": "modelopt"}
    return values


def _prefixes(model: Model, weights: Weights) -> Iterator[tuple[str, str]]:
    """Yield pairs of prefixes, as stored and as needed, if a decoder was saved without its head."""
    embedding = model.weights()["embed"]
    assert isinstance(embedding, str)
    prefix, _, inside = embedding.partition(".")
    if f"{inside}.weight" in weights.shapes():
        yield from zip(BEHIND_DECODERS, BEHIND_DECODERS, strict=True)
        yield "", f"{prefix}."


def merged(values: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Replace values by others; objects are merged."""
    found = dict(values)
    for key, value in overrides.items():
        own = found.get(key)
        if isinstance(own, Mapping) and isinstance(value, Mapping):
            value = merged(own, value)
        found[key] = value
    return found


def _architecture(config: Config) -> str:
    names = config.strings("architectures")
    if not names:
        return config.string("architectures")  # raises: it is missing
    return names[0]


def quantization_in(values: Mapping[str, Any]) -> str | None:
    """Return the format that a config.json names; None for weights that are not quantised."""
    config = Config(values)
    key = "quantization_config"
    settings = config.part(key) if config.has(key) else None
    if settings is None or not settings.has("quant_method"):
        return None
    return settings.string("quant_method")


def formats_in(values: Mapping[str, Any]) -> Sequence[WeightFormat]:
    """Return the formats in which the weights may be stored."""
    from octavo.quant.registry import formats_for

    config = Config(values)
    key = "quantization_config"
    return formats_for(config.part(key) if config.has(key) else None)
