"""From a request's fields to sampling parameters, with the model's defaults for the rest."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from octavo.api.outputs import RequestError
from octavo.api.prompts import Input, check_ids
from octavo.api.requests import PLAIN, Options, bad_word_variants, check_request, distinct
from octavo.core.sampling_params import NO_LIMIT, RequestOutputKind, SamplingParams
from octavo.server.generation import GenerationRequest, Shape
from octavo.server.http.errors import ApiError, invalid
from octavo.server.http.exchange import Exchange
from octavo.server.openai.common import decoded
from octavo.server.schema.sampling import MAX_BAD_WORD_CHARACTERS, CommonRequest
from octavo.text.prompt_worker import PreparedPrompt

NO_SEED = -1  # as in vLLM: a seed is drawn for the request
_FROM_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_AS_GIVEN = (
    *("min_tokens", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
    *("spaces_between_special_tokens", "prompt_logprobs"),
)
_IF_GIVEN = (
    *("presence_penalty", "frequency_penalty", "seed", "n", "stop", "stop_token_ids"),
    *("logit_bias", "allowed_token_ids"),
)
_SUBJECT = re.compile(r"^(the )?prompt\b")


def bad_words_of(request: CommonRequest) -> list[str]:
    """Return what a prompt worker must tokenise beside the first prompt."""
    words = request.bad_words
    if not words:
        return []
    num_characters = sum(map(len, words))
    if num_characters > MAX_BAD_WORD_CHARACTERS:
        raise invalid(
            f"bad_words have {num_characters} characters together; at most "
            f"{MAX_BAD_WORD_CHARACTERS} are accepted",
            "bad_words",
        )
    try:
        return bad_word_variants(words)
    except RequestError as error:
        raise answer_to(error, request) from None


def sampling_of(
    request: CommonRequest, prompt: PreparedPrompt, defaults: SamplingParams, **given: Any
) -> SamplingParams:
    """Return the sampling parameters; raise ApiError for fields that exclude each other.

    `prompt` is the first, with the bad words' tokens. `given` are parameters that the dialect has
    worked out from other fields.
    """
    values: dict[str, Any] = {}
    for name in _AS_GIVEN:
        values[name] = getattr(request, name)
    for name in _FROM_MODEL:
        value = getattr(request, name)
        values[name] = getattr(defaults, name) if value is None else value
    for name in _IF_GIVEN:
        if (value := getattr(request, name)) is not None:
            values[name] = value
    if prompt.bad_words_token_ids:
        values["bad_words_token_ids"] = distinct(prompt.bad_words_token_ids)
    if request.seed == NO_SEED:
        del values["seed"]
    kind = RequestOutputKind.DELTA if request.stream else RequestOutputKind.FINAL_ONLY
    try:
        return SamplingParams(output_kind=kind, **{**values, **given})
    except RequestError as error:
        raise answer_to(error, request) from None


def generation_request(
    exchange: Exchange,
    request: CommonRequest,
    prompts: list[PreparedPrompt],
    sampling: SamplingParams,
    shape: Shape,
    *,
    drops_output: bool = False,
) -> GenerationRequest:
    """Check each prompt with its parameters; raise ApiError, with the field that is wrong."""
    server = exchange.server
    # Requests share cached prefixes within a scope: the server's, a key's or a salt's.
    scope = exchange.owner if server.config.cache_scope == "key" else ""
    if request.cache_salt is not None:
        scope = f"{scope}/{request.cache_salt}"
    options = PLAIN
    if request.priority or scope:
        options = Options(priority=request.priority, cache_scope=scope)
    model = server.llm.model
    made = GenerationRequest([], shape, bool(request.stream), bool(request.explain), drops_output)
    for index, prompt in enumerate(prompts):
        try:
            ids = check_ids(prompt.token_ids, model.facts.vocabulary)
            given = Input(prompt.text or None, ids)
            made.requests.append(check_request(model, given, sampling, options))
        except RequestError as error:
            raise answer_to(error, request, index, len(prompts)) from None
        made.template_seconds += prompt.template_seconds
        made.tokenize_seconds += prompt.tokenize_seconds
    return made


def answer_to(
    error: RequestError, request: CommonRequest, index: int = 0, num_prompts: int = 1
) -> ApiError:
    """Return an error of the engine's checks as a 400 that names the field of this dialect."""
    message = str(error)
    param = error.param or _first_named(message, request)
    if param == "prompt":
        if hasattr(request, "messages"):
            param = "messages"
        elif num_prompts > 1:
            return of_one(invalid(message, param, error.code), index, num_prompts)
    elif param == "logprobs" and hasattr(request, "top_logprobs"):
        param = "top_logprobs"
        message = message.replace("logprobs", param, 1)
    return invalid(message, param, error.code)


def _first_named(message: str, request: CommonRequest) -> str | None:
    """Return the field that a message is about: it names it early."""
    words = message.replace("=", " ").replace(",", " ").split()
    return next((word for word in words if word in request.__struct_fields__), None)


def of_one(error: ApiError, index: int, num_prompts: int) -> ApiError:
    """Add the prompt's index to an error, if there are several prompts."""
    if num_prompts == 1 or error.param != "prompt":
        return error
    name = f"prompt[{index}]"
    message, is_subject = _SUBJECT.subn(name, error.message)
    return invalid(message if is_subject else f"{name}: {message}", name, error.code)


def check_stream_options(request: CommonRequest) -> None:
    """Refuse options of streams in other requests, and prompt_logprobs in streams."""
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options needs stream=true", "stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise invalid("prompt_logprobs are not streamed; set stream=false", "prompt_logprobs")


async def fitted(
    exchange: Exchange, request: CommonRequest, prompts: list[PreparedPrompt], wanted: int | None
) -> tuple[list[PreparedPrompt], int]:
    """Return the prompts, cut if the request asks for it, and the limit for their answers.

    The limit is the least of what the request wants, what the longest prompt leaves free and what
    the server allows. A prompt that leaves nothing is refused later, by the check of all bounds.
    """
    facts, config = exchange.server.llm.model.facts, exchange.server.config
    if request.truncate_prompt_tokens is not None:
        prompts = [await _cut(exchange, request, prompt, wanted) for prompt in prompts]
    room = facts.longest_tokens
    for prompt in prompts:
        room = min(room, facts.longest_tokens - len(prompt.token_ids))
    if wanted is None:
        wanted = max(facts.generation.max_new_tokens or NO_LIMIT, request.min_tokens)
    most = min(wanted, room) if room > 0 else wanted
    if config.max_output_tokens is not None:
        most = min(most, config.max_output_tokens)
    if request.min_tokens > most:
        limit = f"the {most} that this server gives"
        if most == wanted:
            limit = f"max_tokens={wanted}"
        elif most == room:
            limit = f"the {room} tokens that the context leaves"
        raise invalid(f"min_tokens={request.min_tokens} is more than {limit}", "min_tokens")
    return prompts, most


async def _cut(
    exchange: Exchange, request: CommonRequest, prompt: PreparedPrompt, wanted: int | None
) -> PreparedPrompt:
    model = exchange.server.llm.model
    keep = request.truncate_prompt_tokens
    assert keep is not None
    if keep == -1:
        keep = max(1, model.facts.longest_tokens - max(1, wanted or 1))
    if keep == 0:
        name = "truncate_prompt_tokens"
        raise invalid(f"{name}=0 leaves nothing of the prompt; give 1 at least, or -1", name)
    ids = prompt.token_ids
    if len(ids) <= keep:
        return prompt
    kept = ids[:keep] if request.truncation_side == "right" else ids[len(ids) - keep :]
    text = await decoded(model.tokenizer, kept)
    return msgspec.structs.replace(prompt, text=text, token_ids=kept)


def seconds_of(request: CommonRequest, exchange: Exchange) -> float:
    """Return the time left for the request; refuse it if the queue alone takes longer."""
    seconds = exchange.server.config.max_request_seconds
    if request.deadline_ms is not None:
        spent = exchange.server.clock() - exchange.began
        seconds = min(seconds, max(0.0, request.deadline_ms / 1000 - spent))
        exchange.server.admission.check_deadline(seconds)
    return seconds
