"""From a request's fields to sampling parameters, with the model's defaults for the rest."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.api.requests import Options
from octavo.core.sampling_params import NO_LIMIT, RequestOutputKind, SamplingParams
from octavo.server.engine import ModelFacts
from octavo.server.http.errors import invalid
from octavo.server.http.exchange import Exchange
from octavo.server.schema.sampling import CommonRequest
from octavo.text.prompt_worker import PreparedPrompt

NO_SEED = -1  # as vLLM has it: drawn for the request
_FROM_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_AS_GIVEN = (
    *("min_tokens", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
    *("spaces_between_special_tokens", "prompt_logprobs"),
)
_IF_GIVEN = (
    *("presence_penalty", "frequency_penalty", "seed", "n", "stop", "stop_token_ids"),
    *("logit_bias", "allowed_token_ids", "bad_words"),
)


def sampling_of(
    request: CommonRequest, facts: ModelFacts, *, max_tokens: int, logprobs: int | None
) -> SamplingParams:
    """Raises ApiError for what cannot be: the fields are in their bounds, but not together."""
    given: dict[str, Any] = {name: getattr(request, name) for name in _AS_GIVEN}
    for name in _FROM_MODEL:
        value = getattr(request, name)
        given[name] = getattr(facts.defaults, name) if value is None else value
    for name in _IF_GIVEN:
        if (value := getattr(request, name)) is not None:
            given[name] = value
    if request.seed == NO_SEED:
        del given["seed"]
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    try:
        sampling = SamplingParams(
            max_tokens=max_tokens, logprobs=logprobs, output_kind=kind, **given
        )
        sampling.check_vocabulary(facts.vocabulary)
    except ValueError as error:
        raise invalid(str(error), _first_named(str(error), request)) from None
    for name in ("logprobs", "prompt_logprobs"):
        asked = getattr(sampling, name)
        most = facts.max_logprobs
        if asked is not None and most != -1 and (asked == -1 or asked > most):
            if name == "logprobs" and hasattr(request, "top_logprobs"):
                name = "top_logprobs"  # as a chat has it
            raise invalid(f"{name}={asked}: this server tells at most {most}", name)
    return sampling


def _first_named(message: str, request: CommonRequest) -> str | None:
    """Our messages begin with, or name early, the field that they are about."""
    words = message.replace("=", " ").replace(",", " ").split()
    return next((word for word in words if word in request.__struct_fields__), None)


def check_stream_options(request: CommonRequest) -> None:
    """`stream_options` are of streams."""
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options needs stream=true", "stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise invalid("prompt_logprobs are not streamed; set stream=false", "prompt_logprobs")


def fit(
    request: CommonRequest, prompts: list[PreparedPrompt], wanted: int | None, exchange: Exchange
) -> tuple[list[PreparedPrompt], int]:
    """The prompts, cut if that was asked for, and `max_tokens` as far as there is room."""
    facts, config = exchange.server.engine.facts, exchange.server.config
    most = facts.longest
    cut = [_cut(request, prompt, wanted, most, facts) for prompt in prompts]
    lengths = [len(prompt.token_ids) for prompt in cut]
    longest = max(lengths)
    room = most - longest
    if room < 1:
        what = "model's context" if most == facts.max_model_len else "room in the KV cache"
        name, param = _whose(request, lengths, longest)
        raise invalid(
            f"{name} has {longest} tokens, and the {what} is {most}, "
            "which leaves no room for an answer: shorten it, or set truncate_prompt_tokens",
            param,
            "context_length_exceeded",
        )
    if not min(lengths):
        name, param = _whose(request, lengths, 0)
        raise invalid(f"{name} has no tokens; at least one is needed to begin from", param)
    if wanted is None:
        wanted = max(facts.max_new_tokens or NO_LIMIT, request.min_tokens)
    limits = {
        f"max_tokens={wanted}": wanted,
        f"the {room} tokens that the context leaves": room,
        f"the {config.max_output_tokens} that this server gives": config.max_output_tokens,
    }
    limit, max_tokens = min(
        ((name, most) for name, most in limits.items() if most is not None),
        key=lambda pair: pair[1],
    )
    if request.min_tokens > max_tokens:
        raise invalid(f"min_tokens={request.min_tokens} is more than {limit}", "min_tokens")
    return cut, max_tokens


def _whose(request: CommonRequest, lengths: list[int], length: int) -> tuple[str, str]:
    """What the first prompt of that length is called, and the field that it is from."""
    if "messages" in request.__struct_fields__:
        return "the prompt", "messages"
    if len(lengths) == 1:
        return "the prompt", "prompt"
    name = f"prompt[{lengths.index(length)}]"
    return name, name


def _cut(
    request: CommonRequest, prompt: PreparedPrompt, wanted: int | None, most: int, facts: ModelFacts
) -> PreparedPrompt:
    keep = request.truncate_prompt_tokens
    if keep is None:
        return prompt
    if keep == -1:
        keep = max(1, most - max(1, wanted or 1))
    if keep == 0:
        name = "truncate_prompt_tokens"
        raise invalid(f"{name}=0 leaves nothing of the prompt; give 1 at least, or -1", name)
    ids = prompt.token_ids
    if len(ids) <= keep:
        return prompt
    kept = ids[:keep] if request.truncation_side == "right" else ids[len(ids) - keep :]
    text = facts.tokenizer.decode(kept, skip_special_tokens=False)
    return msgspec.structs.replace(prompt, text=text, token_ids=kept)


def options_of(request: CommonRequest, exchange: Exchange) -> Options:
    """How the request stands to others: who shares its prefixes, who goes first."""
    scope = exchange.owner if exchange.server.config.cache_scope == "key" else ""
    if request.cache_salt is not None:
        scope = f"{scope}/{request.cache_salt}"
    return Options(priority=request.priority, cache_scope=scope)


def seconds_of(request: CommonRequest, exchange: Exchange) -> float:
    """How long the request may take from now on; refused if the queue alone takes longer."""
    seconds = exchange.server.config.max_request_seconds
    if request.deadline_ms is not None:
        spent = exchange.server.clock() - exchange.began
        seconds = min(seconds, max(0.0, request.deadline_ms / 1000 - spent))
        exchange.server.admission.check_deadline(seconds)
    return seconds
