"""How a GGUF file's positions turn, in the words of config.json."""

from __future__ import annotations

from typing import Any

from octavo.loader.errors import UnsupportedFormatError, quote
from octavo.models.gguf.keys import Facts

FREQUENCY_DIVISORS = "rope_freqs.weight"
LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"

# Optional keys of YaRN: GGUF's, config.json's.
_YARN = {
    "rope.scaling.yarn_attn_factor": "attention_factor",
    "rope.scaling.yarn_beta_fast": "beta_fast",
    "rope.scaling.yarn_beta_slow": "beta_slow",
}


def rope_parameters(facts: Facts) -> dict[str, Any]:
    """What config.json says under rope_parameters."""
    said: dict[str, Any] = {
        "rope_type": "default",
        "rope_theta": facts.number("rope.freq_base", 10_000.0),
    }
    said.update(_scaling(facts))
    return said


def _scaling(facts: Facts) -> dict[str, Any]:
    if facts.has_tensor(FREQUENCY_DIVISORS):
        # Llama 3 and whoever else gives each frequency a divisor: the same at any length.
        divisors = facts.values(FREQUENCY_DIVISORS)
        return {
            "rope_type": "longrope",
            "short_factor": divisors,
            "long_factor": divisors,
            "attention_factor": 1.0,
        }
    if facts.has_tensor(LONG_FACTORS) and facts.has_tensor(SHORT_FACTORS):
        return _longrope(facts)
    kind = facts.text("rope.scaling.type", "linear" if facts.has("rope.scale_linear") else "none")
    if kind == "none" or kind == "longrope":  # longrope without factors: a short-context model
        return {}
    factor = facts.number("rope.scaling.factor", facts.number("rope.scale_linear", 1.0))
    if kind == "linear":
        return {} if factor in (0.0, 1.0) else {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        return {"rope_type": "yarn", "factor": factor, **_original_length(facts), **_yarn(facts)}
    raise UnsupportedFormatError(
        f"RoPE scaling {quote(kind)} is not supported; known are none, linear, yarn and longrope",
        path=facts.checkpoint.path,
    )


def _longrope(facts: Facts) -> dict[str, Any]:
    said: dict[str, Any] = {
        "rope_type": "longrope",
        "short_factor": facts.values(SHORT_FACTORS),
        "long_factor": facts.values(LONG_FACTORS),
        **_original_length(facts),
    }
    if facts.has("rope.scaling.attn_factor"):
        said["attention_factor"] = facts.number("rope.scaling.attn_factor")
    return said


def _original_length(facts: Facts) -> dict[str, Any]:
    key = "rope.scaling.original_context_length"
    length = facts.whole(key, facts.whole("context_length"))
    return {"original_max_position_embeddings": length}


def _yarn(facts: Facts) -> dict[str, Any]:
    return {theirs: facts.number(ours) for ours, theirs in _YARN.items() if facts.has(ours)}


def partial_rotation(facts: Facts, head_dim: int) -> dict[str, Any]:
    """The share of a head's dimensions that turn, where not all do."""
    dimensions = facts.whole("rope.dimension_count", head_dim)
    if dimensions == head_dim or head_dim == 0:
        return {}
    share = dimensions / head_dim
    if int(share * head_dim) != dimensions:  # readers cut off what follows the point
        share += 2.0**-50
    return {"partial_rotary_factor": share}
