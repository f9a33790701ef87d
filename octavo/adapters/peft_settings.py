"""The settings of an adapter in PEFT's form, adapter_config.json: what is read, what is refused."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from octavo.adapters.module_choice import ORIGIN, ByModule, Layers, Names
from octavo.loader.errors import UnsupportedFormatError, quote
from octavo.loader.strict_json import parse_object

log = logging.getLogger(__name__)

Rank = Annotated[int, Meta(ge=1, le=1 << 16)]

_ALL_LINEAR = "all-linear"
_BIASES = ("none", "all", "lora_only")
_NEUTRAL_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")

# Fields that must have their usual value, with what to do otherwise.
_REFUSED: Mapping[str, str] = {
    "trainable_token_indices": "trained embeddings are not supported: train without "
    "trainable_token_indices, or merge the adapter into its base",
    "target_parameters": "adapters of parameters, such as stacked experts, are not supported: "
    "leave target_parameters out",
    "layer_replication": "replicated layers are not supported: leave layer_replication out",
    "alora_invocation_tokens": "activated LoRA is not supported: train a plain LoRA",
    "use_qalora": "QALoRA is not supported: train a plain LoRA",
    "use_bdlora": "block-diagonal LoRA is not supported: train a plain LoRA",
    "arrow_config": "Arrow is not supported: train a plain LoRA",
    "kasa_config": "KaSA is not supported: train a plain LoRA",
    "monteclora_config": "MonteCLoRA is not supported: train a plain LoRA",
    "velora_config": "VeLoRA is not supported: train a plain LoRA",
    "megatron_config": "Megatron's layers are not supported: leave megatron_config out",
}
# Fields that change nothing about what a trained adapter computes.
_WITHOUT_EFFECT = frozenset(
    (
        *("task_type", "auto_mapping", "base_model_name_or_path", "revision", "inference_mode"),
        *("peft_version", "lora_dropout", "fan_in_fan_out", "megatron_core", "loftq_config"),
        *("eva_config", "corda_config", "lora_ga_config", "qalora_group_size", "runtime_config"),
        *("bias", "init_lora_weights"),
    )
)


class PeftSettings(Struct):
    """The fields that say what an adapter computes, and where."""

    r: Rank
    lora_alpha: float
    peft_type: str = "LORA"
    bias: str = "none"
    use_rslora: bool = False
    use_dora: bool = False
    lora_bias: bool = False
    ensure_weight_tying: bool = False
    init_lora_weights: bool | str | None = True
    base_model_name_or_path: str | None = None
    target_modules: list[str] | str | None = None
    exclude_modules: list[str] | str | None = None
    modules_to_save: list[str] | None = None
    layers_to_transform: list[int] | int | None = None
    layers_pattern: list[str] | str | None = None
    rank_pattern: dict[str, Rank] | None = None
    alpha_pattern: dict[str, float] | None = None


class Choice:
    """The modules that settings choose, and each one's rank and scale."""

    def __init__(self, settings: PeftSettings) -> None:
        self._settings = settings
        self._ranks = ByModule(settings.rank_pattern or {}, "rank_pattern")
        self._alphas = ByModule(settings.alpha_pattern or {}, "alpha_pattern")
        self._targets = self._excluded = None
        self._layers: Layers | None = None
        targets = settings.target_modules
        if targets and targets != _ALL_LINEAR:
            self._targets = _names(targets, "target_modules")
        if settings.exclude_modules:
            self._excluded = _names(settings.exclude_modules, "exclude_modules")
        # PEFT lets a regex speak for all blocks.
        if settings.layers_to_transform is not None and not isinstance(targets, str):
            self._layers = Layers(settings.layers_to_transform, settings.layers_pattern)

    def why_not(self, module: str) -> str | None:
        """Return why settings do not choose a module; None if they do."""
        if self._excluded is not None and self._excluded.match(module):
            return "exclude_modules names it"
        if self._targets is not None and not self._targets.match(module):
            return "target_modules does not name it"
        if self._layers is not None and not self._layers.match(module):
            return "layers_to_transform does not have its block"
        return None

    def rank(self, module: str) -> int:
        return self._ranks.find(module, self._settings.r)

    def scale_of(self, module: str) -> Callable[[int], float]:
        """Return what gives the factor of a module's product by its rank."""
        alpha = self._alphas.find(module, self._settings.lora_alpha)
        if self._settings.use_rslora:
            return lambda rank: alpha / math.sqrt(rank)
        return lambda rank: alpha / rank


def _names(names: list[str] | str, key: str) -> Names | None:
    """Read which modules are named; None for a regex that cannot be read.

    The tensors say by themselves which modules they are of, so nothing is wrong without it.
    """
    try:
        return Names(names, key)
    except UnsupportedFormatError as error:
        if not isinstance(names, str):
            raise
        log.warning("the adapter's tensors are not compared with its settings: %s", error)
        return None


def read_settings(text: bytes, path: Path) -> PeftSettings:
    """Read the settings; refuse those of adapters that are not supported."""
    if not text:
        raise UnsupportedFormatError(
            f"{ORIGIN} is missing beside it",
            path=path,
            advice="copy the whole directory of the adapter, as PEFT has written it",
        )
    values = parse_object(text, path, ORIGIN)
    _refuse(values, path)
    try:
        settings = msgspec.convert(values, PeftSettings)
    except msgspec.ValidationError as error:
        raise UnsupportedFormatError(f"{ORIGIN}: {error}", path=path) from None
    if settings.peft_type != "LORA":
        raise UnsupportedFormatError(
            f"{ORIGIN}: peft_type is {quote(settings.peft_type)}; only LORA is supported",
            path=path,
            advice="merge the adapter into its base",
        )
    if settings.bias not in _BIASES:
        raise UnsupportedFormatError(
            f"{ORIGIN}: bias is {quote(settings.bias)}, must be one of {', '.join(_BIASES)}",
            path=path,
        )
    if settings.init_lora_weights not in _NEUTRAL_STARTS:
        raise UnsupportedFormatError(
            f"{ORIGIN}: init_lora_weights is {quote(str(settings.init_lora_weights))}, which "
            "changes the base model's own weights, or is not known",
            path=path,
            advice="let PEFT's save_pretrained convert it to a plain LoRA: "
            "path_initial_model_for_weight_conversion",
        )
    return settings


def _refuse(values: Mapping[str, object], path: Path) -> None:
    """Refuse what would change the results and is not supported; log what is not known."""
    for key, why in _REFUSED.items():
        if values.get(key):
            raise UnsupportedFormatError(f"{ORIGIN}: {key} is set, and {why}", path=path)
    known = _WITHOUT_EFFECT | _REFUSED.keys() | set(PeftSettings.__struct_fields__)
    unknown = [key for key, value in values.items() if key not in known and value]
    if unknown:
        log.warning(
            "%s: %s has fields that are not known, and that change nothing here: %s",
            path,
            ORIGIN,
            ", ".join(map(quote, unknown[:8])),
        )
