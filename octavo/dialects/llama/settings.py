"""The parameters of an answer, as llama.cpp's answers list them."""

from __future__ import annotations

from typing import Any

from octavo.api.text_model import TextModel
from octavo.core.sampling_params import SamplingParams
from octavo.dialects.llama.schema import LlamaSampling

NO_SEED = 2**32 - 1
# Samplers that are not served, at the values that switch them off.
_OFF: dict[str, Any] = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "typical_p": 1.0,
    "repeat_last_n": -1,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": -1,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.9,
}
_SAMPLERS = ["penalties", "temperature", "min_p", "top_k", "top_p"]  # in their order


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
        "min_keep": 0,
        "grammar": request.grammar or "",
        "samplers": _SAMPLERS,
    }


def sampling_settings(sampling: SamplingParams) -> dict[str, Any]:
    """Return the parameters of how tokens are drawn."""
    return {
        "seed": NO_SEED if sampling.seed is None else sampling.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repetition_penalty,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        **_OFF,
    }


def default_settings(model: TextModel) -> dict[str, Any]:
    """Return the parameters of requests that set none."""
    defaults = sampling_settings(model.defaults)
    most = model.facts.generation.max_new_tokens or -1
    return {
        **defaults,
        "seed": model.seed,
        "max_tokens": most,
        "n_predict": most,
        "n_keep": 0,
        "stream": False,
        "n_probs": 0,
        "samplers": _SAMPLERS,
    }
