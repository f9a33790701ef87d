"""From a neutral request to checked ones: prompts are tokenised, limits applied, bounds checked."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.api.outputs import RequestError
from octavo.api.prompts import Input, check_ids
from octavo.api.requests import (
    PLAIN,
    TOO_LONG,
    CheckedRequest,
    Options,
    check_request,
    distinct,
)
from octavo.core.sampling_params import NO_LIMIT, RequestOutputKind, SamplingParams
from octavo.server.http.errors import ApiError, invalid
from octavo.server.in_pieces import decoded
from octavo.server.operation import GenerationRequest, PreparedRequest
from octavo.server.server import Server
from octavo.text.prompt_worker import PreparedPrompt, PromptJob

_FROM_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


async def prepare(server: Server, asked: GenerationRequest, owner: str) -> PreparedRequest:
    """Tokenise the prompts and check all bounds; raise ApiError with the field that is wrong.

    `owner` is the key of the client.
    """
    prompts: list[PreparedPrompt] = []
    for prompt in asked.prompts:
        bad_words = [] if prompts else asked.bad_words  # they are tokenised once
        try:
            prompts.append(await _tokenised(server, asked, prompt, bad_words, owner))
        except ApiError as error:
            raise asked.named(error, len(prompts)) from None
    if asked.keep_tokens is not None:
        prompts = [await _cut(server, asked, prompt) for prompt in prompts]
    _check_room(server, asked, prompts)
    try:
        sampling = _sampling(server, asked, prompts)
    except RequestError as error:
        raise asked.named(invalid(str(error), error.param, error.code), 0) from None
    # Requests share cached prefixes within a scope: the server's, a key's or a salt's.
    scope = owner if server.config.cache_scope == "key" else ""
    if asked.cache_salt is not None:
        scope = f"{scope}/{asked.cache_salt}"
    options = PLAIN
    if asked.priority or scope:
        options = Options(priority=asked.priority, cache_scope=scope)
    model = server.llm.model
    checked: list[CheckedRequest] = []
    for prepared in prompts:
        try:
            ids = check_ids(prepared.token_ids, model.facts.vocabulary)
            given = Input(prepared.text or None, ids)
            checked.append(
                check_request(model, given, sampling, options, make_parser=asked.make_parser)
            )
        except RequestError as error:
            wrong = invalid(str(error), error.param, error.code)
            raise asked.named(wrong, len(checked)) from None
    return PreparedRequest(asked, prompts, sampling, checked)


async def _tokenised(
    server: Server,
    asked: GenerationRequest,
    prompt: PromptJob | list[int],
    bad_words: list[str],
    owner: str,
) -> PreparedPrompt:
    if isinstance(prompt, PromptJob):
        if bad_words:
            prompt = msgspec.structs.replace(prompt, bad_words=bad_words)
        return await server.prompt_pool.prepare(prompt, owner)
    words: list[list[int]] = []
    if bad_words:
        job = PromptJob(text="", bad_words=bad_words)
        words = (await server.prompt_pool.prepare(job, owner)).bad_words_token_ids
    model, text = server.llm.model, ""
    # A prompt that is far too long is refused later, and not decoded before.
    if asked.wants_text and len(prompt) <= 2 * model.facts.max_model_len:
        text = await decoded(model.tokenizer, prompt)
    return PreparedPrompt(text=text, token_ids=prompt, bad_words_token_ids=words)


async def _cut(server: Server, asked: GenerationRequest, prompt: PreparedPrompt) -> PreparedPrompt:
    """Return the prompt with the number of tokens that the request keeps."""
    model, keep = server.llm.model, asked.keep_tokens
    assert keep is not None
    if keep == -1:
        wanted = asked.max_tokens or asked.default_max_tokens or 1
        keep = max(1, model.facts.longest_tokens - wanted)
    ids = prompt.token_ids
    if len(ids) <= keep:
        return prompt
    kept = ids[len(ids) - keep :] if asked.keeps_end else ids[:keep]
    text = await decoded(model.tokenizer, kept)
    return msgspec.structs.replace(prompt, text=text, token_ids=kept)


def _sampling(
    server: Server, asked: GenerationRequest, prompts: list[PreparedPrompt]
) -> SamplingParams:
    """Return what was asked for, with the model's defaults and the limit of the answers."""
    values: dict[str, Any] = {}
    for name in _FROM_MODEL:
        values[name] = getattr(server.llm.model.defaults, name)
    values.update(asked.sampling)
    if prompts[0].bad_words_token_ids:
        values["bad_words_token_ids"] = distinct(prompts[0].bad_words_token_ids)
    values["max_tokens"] = _max_tokens(server, asked, prompts)
    values["output_kind"] = RequestOutputKind.FINAL_ONLY
    if asked.is_stream:
        values["output_kind"] = RequestOutputKind.DELTA
    return SamplingParams(**values)


def _check_room(server: Server, asked: GenerationRequest, prompts: list[PreparedPrompt]) -> None:
    """Refuse an answer that was asked to be longer than what its prompt leaves of the context."""
    facts, wanted = server.llm.model.facts, asked.max_tokens
    if wanted is None:
        return
    for index, prompt in enumerate(prompts):
        num_prompt = len(prompt.token_ids)
        room = facts.longest_tokens - num_prompt
        if 0 < room < wanted:  # a prompt that leaves nothing is refused as such
            where = f"the model's context has {facts.max_model_len}"
            if facts.longest_tokens < facts.max_model_len:
                where = f"the KV cache holds {facts.longest_tokens}"
            error = invalid(
                f"max_tokens={wanted} and a prompt of {num_prompt} tokens make "
                f"{num_prompt + wanted}; {where}: lower max_tokens to {room} or less, or leave "
                "it out",
                "max_tokens",
                TOO_LONG,
            )
            raise asked.named(error, index)


def _max_tokens(server: Server, asked: GenerationRequest, prompts: list[PreparedPrompt]) -> int:
    """Return the limit: the least of what is wanted, what is free and what the server allows.

    A prompt that leaves nothing free is refused later, by the check of all bounds.
    """
    facts, limit = server.llm.model.facts, server.config.max_output_tokens
    least = asked.sampling.get("min_tokens", 0)
    room = facts.longest_tokens
    for prompt in prompts:
        room = min(room, facts.longest_tokens - len(prompt.token_ids))
    wanted = asked.max_tokens
    if wanted is None:
        recommended = facts.generation.max_new_tokens or NO_LIMIT
        wanted = asked.default_max_tokens or max(recommended, least)
    most = min(wanted, room) if room > 0 else wanted
    if limit is not None:
        most = min(most, limit)
    if least > most:
        which = f"the {most} that this server gives"
        if most == wanted:
            which = f"max_tokens={wanted}"
        elif most == room:
            which = f"the {room} tokens that the context leaves"
        raise RequestError(f"min_tokens={least} is more than {which}", param="min_tokens")
    return most
