"""The rotary embedding of a GGUF file in the form of a config.json."""

from __future__ import annotations

from typing import Any

from octavo.loader.errors import UnsupportedFormatError, quote
from octavo.models.gguf.keys import GgufKeys

FREQUENCY_DIVISORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"

# Optional keys of YaRN: GGUF's, config.json's.
_YARN = {
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}

# The keys that become numbers of rope_parameters: GGUF's, config.json's.
ROPE_KEYS = {
    **_YARN,
    "rope.freq_base": "rope_theta",
    "rope.scaling.factor": "factor",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
}


def rope_parameters(keys: GgufKeys) -> dict[str, Any]:
    """Return the value of rope_parameters."""
    theta = keys.number("rope.freq_base", 10_000.0)
    return {"rope_type": "default", "rope_theta": theta, **_scaling(keys)}


def _scaling(keys: GgufKeys) -> dict[str, Any]:
    if keys.has_tensor(FREQUENCY_DIVISORS):
        # Llama 3 and others give each frequency a divisor, the same for any length.
        divisors = keys.values(FREQUENCY_DIVISORS)
        return {
            "rope_type": "longrope",
            "short_factor": divisors,
            "long_factor": divisors,
            "attention_factor": 1.0,
        }
    if keys.has_tensor(LONG_FACTORS) and keys.has_tensor(SHORT_FACTORS):
        return _longrope(keys)
    kind = keys.text("rope.scaling.type", "linear" if keys.has("rope.scale_linear") else "none")
    if kind == "none" or kind == "longrope":  # longrope without factors: a short-context model
        return {}
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    if kind == "linear":
        return {} if factor in (0.0, 1.0) else {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return {"rope_type": "yarn", "factor": factor, **_original_length(keys), **_yarn(keys)}
    raise UnsupportedFormatError(
        f"{keys.architecture}.rope.scaling.type {quote(kind)} is not supported; known are none, "
        "linear, yarn and longrope",
        path=keys.checkpoint.path,
    )


def _longrope(keys: GgufKeys) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": keys.values(SHORT_FACTORS),
        "long_factor": keys.values(LONG_FACTORS),
        **_original_length(keys),
    }
    if keys.has("rope.scaling.attn_factor"):
        parameters["attention_factor"] = keys.number("rope.scaling.attn_factor")
    return parameters


def _original_length(keys: GgufKeys) -> dict[str, Any]:
    key = "rope.scaling.original_context_length"
    length = keys.whole(key, keys.whole("context_length"))
    return {"original_max_position_embeddings": length}


def _yarn(keys: GgufKeys) -> dict[str, Any]:
    return {theirs: keys.number(ours) for ours, theirs in _YARN.items() if keys.has(ours)}


def partial_rotation(keys: GgufKeys, head_dim: int) -> dict[str, Any]:
    """Return the share of a head's dimensions that rotate, unless all do."""
    dimensions = keys.whole("rope.dimension_count", head_dim)
    if dimensions == head_dim or head_dim == 0:
        return {}
    share = dimensions / head_dim
    if int(share * head_dim) != dimensions:  # readers truncate the product
        share += 2.0**-50
    return {"partial_rotary_factor": share}
