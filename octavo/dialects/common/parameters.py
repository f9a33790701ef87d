"""From OpenAI's fields to the neutral ones, and from errors to the names of the fields."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

import msgspec

from octavo.api.requests import TOO_LONG, bad_word_variants
from octavo.dialects.common.beams import bind_beams
from octavo.dialects.common.conversation import conversation_job
from octavo.dialects.common.samplers import given_samplers
from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.sampling import MAX_BAD_WORD_CHARACTERS, CommonRequest
from octavo.dialects.common.shapes import own_places, shape_of
from octavo.dialects.common.tools import tool_use
from octavo.dialects.common.writer import hide_tokens, no_writer
from octavo.serving.operation import GenerationRequest, Writer
from octavo.serving.preparation import refusals
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import ApiError, invalid
from octavo.workers.jobs import PromptJob

NO_SEED = -1  # as in vLLM: a seed is drawn for the request
_SAMPLING = (
    *("temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "seed", "n", "stop", "stop_token_ids"),
    *("min_tokens", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens"),
    *("spaces_between_special_tokens", "prompt_logprobs", "logit_bias", "allowed_token_ids"),
    *("thinking_token_budget", "speculation"),
)


def generation_request(
    request: CommonRequest,
    prompts: list[PromptJob | list[int]],
    max_tokens: int | None,
    logprobs: int | None,
    writer: Callable[..., Writer],
) -> GenerationRequest:
    """Return the neutral request; raise ApiError for fields that exclude each other.

    The limit and the number of log-probabilities are worked out from other fields by the route.
    """
    if request.stream_options is not None and not request.stream:
        raise invalid("stream_options needs stream=true", "stream_options")
    if request.prompt_logprobs is not None and request.stream:
        raise invalid("prompt_logprobs are not streamed; set stream=false", "prompt_logprobs")
    if request.truncate_prompt_tokens == 0:
        name = "truncate_prompt_tokens"
        raise invalid(f"{name}=0 leaves nothing of the prompt; give 1 at least, or -1", name)
    sampling: dict[str, Any] = {"logprobs": logprobs}
    sampling.update(given_fields(request, _SAMPLING))
    sampling.update(given_samplers(request))
    if request.seed == NO_SEED:
        del sampling["seed"]
    if request.logprob_token_ids:
        sampling.update(logprobs=None, logprob_token_ids=request.logprob_token_ids)
    if request.vllm_xargs:
        sampling["extra_args"] = request.vllm_xargs
    if request.repetition_detection is not None:
        sampling["repetition_detection"] = msgspec.structs.asdict(request.repetition_detection)
    return GenerationRequest(
        prompts=prompts,
        sampling=sampling,
        writer=partial(writer, request),
        named=partial(named, request, len(prompts)),
        max_tokens=max_tokens,
        is_stream=bool(request.stream),
        explains=bool(request.explain),
        wants_text=bool(request.return_prompt_text),
        bad_words=_bad_words(request) if request.bad_words else [],
        keep_tokens=request.truncate_prompt_tokens,
        keeps_end=request.truncation_side != "right",
        cache_salt=request.cache_salt,
        priority=request.priority,
        deadline_ms=request.deadline_ms,
        shape=shape_of(request),
    )


def _bad_words(request: CommonRequest) -> list[str]:
    """Return what a prompt worker must tokenise beside the first prompt."""
    words = request.bad_words or ()
    num_characters = sum(map(len, words))
    if num_characters > MAX_BAD_WORD_CHARACTERS:
        raise invalid(
            f"bad_words have {num_characters} characters together; at most "
            f"{MAX_BAD_WORD_CHARACTERS} are accepted",
            "bad_words",
        )
    with refusals():
        return bad_word_variants(words)


def named(request: CommonRequest, num_prompts: int, error: ApiError, index: int) -> ApiError:
    """Return an error of the checks with the name of its field in this dialect."""
    if error.status != 400:
        return error
    if error.param is None:
        error.param = _first_named(error.message, request)
    if num_prompts > 1 and error.param == "prompt":
        return error.at(f"prompt[{index}]")
    if num_prompts > 1 and error.code == TOO_LONG:
        error.message = f"prompt[{index}]: {error.message}"
    return error.renamed({**_own_names(request), **own_places(request)})


def _own_names(request: CommonRequest) -> dict[str, str]:
    """Return the names that fields have in this request, by the neutral ones."""
    names = {"extra_args": "vllm_xargs", "template": "chat_template"}
    if not isinstance(request, ChatRequest):
        return names
    names.update(prompt="messages", logprobs="top_logprobs")
    if request.max_completion_tokens is not None:
        names["max_tokens"] = "max_completion_tokens"
    return names


def _first_named(message: str, request: CommonRequest) -> str | None:
    """Return the field that a message is about: it names it early."""
    words = message.replace("=", " ").replace(",", " ").split()
    return next((word for word in words if word in request.__struct_fields__), None)


def given_fields(request: Any, names: Collection[str]) -> dict[str, Any]:
    """Return the fields with these names that have a value; a mapping has other names for them."""
    found: dict[str, Any] = {}
    pairs = names.items() if isinstance(names, Mapping) else zip(names, names, strict=True)
    for name, own in pairs:
        value = getattr(request, own)
        if value is not None:
            found[name] = value
    return found


def chat_request(
    context: TranslationContext, request: ChatRequest, writer: Callable[..., Writer] = no_writer
) -> GenerationRequest:
    """Return the neutral form of a request to continue a conversation.

    The writer is made of the request's tools and the request, besides what all are made of.
    """
    wanted, named = request.max_completion_tokens, "max_completion_tokens"
    if wanted is None:
        wanted, named = request.max_tokens, "max_tokens"
    if wanted == 0:
        raise invalid(f"{named}=0 leaves no token for an answer; leave it out", named)
    logprobs = None
    if request.logprobs:
        logprobs = request.top_logprobs or 0
    elif request.top_logprobs:
        raise invalid("top_logprobs needs logprobs=true", "top_logprobs")
    elif request.logprob_token_ids:
        raise invalid("logprob_token_ids needs logprobs=true", "logprob_token_ids")
    use = tool_use(request)
    context.formats.check(use)
    job = conversation_job(request, context, use)
    asked = generation_request(request, [job], wanted, logprobs, partial(writer, use))
    if request.prediction is not None:
        asked.prediction = request.prediction.text
    context.formats.bind(asked, use, context.facts.vocabulary)
    if request.include_reasoning is False and context.formats.separates_reasoning:
        hide_tokens(asked)
    bind_beams(request, asked)
    return asked
