"""The parameters of an answer, as llama.cpp's answers list them."""

from __future__ import annotations

from typing import Any

from octavo.api.text_model import TextModel
from octavo.core.sampling_params import SAMPLERS, SamplerOptions, SamplingParams
from octavo.dialects.llama.schema import LlamaSampling

NO_SEED = 2**32 - 1
# Samplers that are not served, at the values that switch them off.
_OFF: dict[str, Any] = {
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
}
_SAME = (
    *("dynatemp_range", "dynatemp_exponent", "xtc_probability", "xtc_threshold", "typical_p"),
    *("repeat_last_n", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n"),
    *("min_keep", "mirostat", "mirostat_tau", "mirostat_eta"),
)


def generation_settings(
    sampling: SamplingParams, model: TextModel, request: LlamaSampling, *, is_limited: bool
) -> dict[str, Any]:
    """Return the parameters of a request after all defaults."""
    most = sampling.max_tokens if is_limited else -1
    biases: list[dict[str, Any]] = [
        {"bias": bias, "token": token} for token, bias in sampling.logit_bias
    ]
    if request.ignore_eos:
        biases += [{"bias": None, "token": token} for token in model.end_ids]
    return {
        **sampling_settings(sampling),
        "stop": list(sampling.stop),
        "max_tokens": most,
        "n_predict": most,
        "n_keep": 0,
        "n_discard": 0,
        "ignore_eos": bool(request.ignore_eos),
        "stream": bool(request.stream),
        "logit_bias": biases,
        "n_probs": request.n_probs or 0,
        "grammar": request.grammar or "",
    }


def sampling_settings(sampling: SamplingParams) -> dict[str, Any]:
    """Return the parameters of how tokens are drawn."""
    options = sampling.sampler_options or SamplerOptions()
    order = options.samplers or SAMPLERS
    return {
        "seed": NO_SEED if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "top_n_sigma": options.top_n_sigma or -1.0,
        **{name: getattr(options, name) for name in _SAME},
        "dry_sequence_breakers": list(options.dry_sequence_breakers),
        "samplers": ["typ_p" if name == "typical_p" else name for name in order],
        **_OFF,
    }


def default_settings(model: TextModel) -> dict[str, Any]:
    """Return the parameters of requests that set none."""
    defaults = sampling_settings(model.defaults)
    most = model.facts.generation.max_new_tokens or -1
    return {
        **defaults,
        "seed": model.seed or NO_SEED,
        "max_tokens": most,
        "n_predict": most,
        "n_keep": 0,
        "stream": False,
        "n_probs": 0,
    }
