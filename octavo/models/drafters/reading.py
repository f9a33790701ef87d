"""What the configurations of all drafters have in common, however they are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.layers import ModelSpec
from octavo.models.config_reader import Config, ConfigurationError

MOST_LAYERS = 16  # of any drafter; published ones have one, or a few
SPECULATORS = "speculators_model_type"  # of the form that the library of this name writes
EAGLE_CONFIG, DFLASH_CONFIG = "eagle_config", "dflash_config"
# Layers of the model whose inputs are read; inside `eagle_config` those whose outputs are, which
# the layers behind them read.
INPUT_IDS = "eagle_aux_hidden_state_layer_ids"
OUTPUT_IDS = f"{EAGLE_CONFIG}.{INPUT_IDS}"


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a drafter's config.json, those of nested parts beside the others."""
    found: dict[str, Any] = {}
    for key in ("transformer_layer_config", EAGLE_CONFIG):
        found |= _nested(values, key)
        if key == EAGLE_CONFIG and INPUT_IDS in found:
            found[OUTPUT_IDS] = found.pop(INPUT_IDS)
    found |= {key: value for key, value in values.items() if value is not None}
    return found | _nested(values, DFLASH_CONFIG)  # which counts more there


def _nested(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Return the values of a nested part, which may be absent."""
    nested = values.get(key)
    if nested is not None and not isinstance(nested, Mapping):
        raise ConfigurationError(f"config: {key} must be an object, is {nested!r:.100}")
    return {} if nested is None else dict(nested)


def checked_spec(config: Config, target: ModelSpec, **own: Any) -> ModelSpec:
    """Read a drafter of a few layers; refuse one that was made for another model."""
    layers = config.layers()
    if layers > MOST_LAYERS:
        raise ConfigurationError(
            f"config: num_hidden_layers is {layers}; drafters that read hidden states have at most "
            f"{MOST_LAYERS}"
        )
    check_target(config, target)
    if "windows" not in own:
        own["windows"] = config.windows(layers)
    return config.standard_spec(vocabulary=target.vocabulary, tied=False, **own)


def read_layers(config: Config, target: ModelSpec, key: str, later: int) -> tuple[int, ...]:
    """Read layers of the model; return those whose inputs are the outputs of ones `later` before.

    They must come in their order.
    """
    found = config.numbers(key)
    most = target.layers - 1 - later
    if not found or any(each != int(each) or not 0 <= each <= most for each in found):
        raise ConfigurationError(
            f"{config.name_of(key)} must be layers of the model, from 0 to {most}, and is "
            f"{list(found)}"
        )
    layers = [int(each) + later for each in found]
    if sorted(set(layers)) != layers:
        raise ConfigurationError(
            f"{config.name_of(key)} is {list(found)}; its layers must come in their order, each "
            "once"
        )
    return tuple(layers)


def check_target(config: Config, target: ModelSpec) -> None:
    """Refuse a drafter that was made for another width of hidden states, or another vocabulary."""
    width = config.positive("target_hidden_size", config.positive("hidden_size", target.hidden))
    if width != target.hidden:
        key = "target_hidden_size" if config.has("target_hidden_size") else "hidden_size"
        raise ConfigurationError(
            f"config: {key} is {width:,}, and the model's hidden states have {target.hidden:,} "
            "numbers: it was made for another one"
        )
    vocabulary = config.positive("vocab_size", target.vocabulary)
    if vocabulary != target.vocabulary:
        raise ConfigurationError(
            f"config: vocab_size is {vocabulary:,}, and the model has {target.vocabulary:,} "
            "tokens: it was made for another one"
        )
