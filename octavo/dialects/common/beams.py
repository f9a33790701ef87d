"""From the fields of a beam search to the neutral ones; what does not go with it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.sampling import CommonRequest
from octavo.serving.operation import BeamSettings, GenerationRequest
from octavo.transport.errors import ApiError, invalid

MAX_BEAMS = 64  # a step looks at twice as many tokens for each
MAX_BEAM_TOKENS = 32_768  # of all beams of a request; each is a request to the engine
SETTINGS: Mapping[str, Any] = {"length_penalty": 1.0, "early_stopping": False}
_NOT_DRAWN = "beams are the likeliest texts, and nothing is drawn"
_UNCHANGED = "beams are ranked by the model's own log-probabilities"
_NOT_KEPT = "the log-probabilities of beams are not kept"
_NO_PLACE = "a beam ends with a token or its length"
# Fields that a request with a beam search may not use: their values that ask for nothing, and
# the reason.
REFUSED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "stream": ((False,), "the best beams are known only at the end"),
    "top_p": ((1,), _NOT_DRAWN),
    "top_k": ((0, -1), _NOT_DRAWN),
    "min_p": ((0,), _NOT_DRAWN),
    "presence_penalty": ((0,), _UNCHANGED),
    "frequency_penalty": ((0,), _UNCHANGED),
    "repetition_penalty": ((1,), _UNCHANGED),
    "typical_p": ((1,), _NOT_DRAWN),
    "top_n_sigma": ((0, -1), _NOT_DRAWN),
    "xtc_probability": ((0,), _NOT_DRAWN),
    "dynatemp_range": ((0,), _NOT_DRAWN),
    "min_keep": ((0, 1), _NOT_DRAWN),
    "mirostat": ((0,), _NOT_DRAWN),
    "samplers": (([],), _NOT_DRAWN),
    "repeat_last_n": ((-1,), _UNCHANGED),
    "dry_multiplier": ((0,), _UNCHANGED),
    "logit_bias": (({},), _UNCHANGED),
    "allowed_token_ids": ((), _UNCHANGED),
    "bad_words": (([],), _UNCHANGED),
    "vllm_xargs": (({},), _UNCHANGED),
    "min_tokens": ((0,), _UNCHANGED),
    "thinking_token_budget": ((-1,), _UNCHANGED),
    "prediction": ((), "beams follow several texts at once"),
    "stop": (([],), _NO_PLACE),
    "repetition_detection": ((), _NO_PLACE),
    "logprobs": ((False,), _NOT_KEPT),
    "top_logprobs": ((0,), _NOT_KEPT),
    "logprob_token_ids": (([],), _NOT_KEPT),
    "prompt_logprobs": ((), _NOT_KEPT),
}


def bind_beams(request: CommonRequest, asked: GenerationRequest) -> None:
    """Let a request be answered by beam search if it asks for that."""
    if not request.use_beam_search:
        for name, harmless in SETTINGS.items():
            if getattr(request, name) not in (None, harmless):
                raise invalid(f"{name} needs use_beam_search=true", name)
        return
    for name, (harmless, why) in REFUSED.items():
        if getattr(request, name, None) not in (None, *harmless):
            raise _refused(name, why)
    if asked.shape is not None:
        error = _refused("structured_outputs", "beams do not keep to a shape")
        raise asked.named(error, 0)
    if asked.answer_job is not None:
        raise _refused(asked.tools.field, "beams do not keep to a shape of calls")
    if asked.drops_output:
        raise _refused("max_tokens", "a beam has at least one token")
    penalty = request.length_penalty
    asked.beams = BeamSettings(
        length_penalty=1.0 if penalty is None else penalty,
        early_stopping=bool(request.early_stopping),
        most_tokens=_most_tokens(request, asked),
    )
    # Nothing is drawn; but parameters for `n` answers cannot have a temperature of 0.
    asked.sampling["temperature"] = 1.0


def _most_tokens(request: CommonRequest, asked: GenerationRequest) -> int:
    """Return how many tokens a beam may have; refuse more, and too many beams."""
    num_beams = request.n or 1
    if num_beams > MAX_BEAMS:
        raise invalid(f"n={num_beams} beams are more than {MAX_BEAMS}; lower n", "n")
    most = MAX_BEAM_TOKENS // (num_beams * len(asked.prompts))
    if not most:
        raise invalid(
            f"{len(asked.prompts)} prompts with n={num_beams} beams are too many: all beams "
            f"together may have {MAX_BEAM_TOKENS} tokens; send fewer prompts",
            "messages" if isinstance(request, ChatRequest) else "prompt",
        )
    if asked.max_tokens is not None and asked.max_tokens > most:
        name = "max_tokens"
        if isinstance(request, ChatRequest) and request.max_completion_tokens is not None:
            name = "max_completion_tokens"
        raise invalid(
            f"{name}={asked.max_tokens} for {num_beams * len(asked.prompts)} beams are more than "
            f"{MAX_BEAM_TOKENS} tokens together: lower {name} to {most} or less",
            name,
        )
    return most


def _refused(name: str, why: str) -> ApiError:
    return invalid(f"{name} does not go with use_beam_search: {why}; leave it out", name)
