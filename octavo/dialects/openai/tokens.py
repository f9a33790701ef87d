"""The routes /tokenize and /detokenize, which do not run the model."""

from __future__ import annotations

from typing import Any

import msgspec

from octavo.dialects.common.conversation import TEMPLATE_NAMES, conversation_job
from octavo.dialects.common.schema.tokens import (
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeRequest,
    TokenizeResponse,
)
from octavo.dialects.common.tools import tool_use
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted
from octavo.serving.large_bodies import prompt_of, read
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import invalid, not_yet
from octavo.workers.jobs import PromptJob, packed


async def tokenize(exchange: Exchange) -> None:
    """Return the token ids of a text or of a conversation."""
    async with admitted(exchange):
        _, job, prepared = await read(exchange, TokenizeRequest, tokenize_job)
        made = await prompt_of(exchange, job, prepared, TEMPLATE_NAMES)
        # A worker has written the lists, which may be long.
        tokens: Any = msgspec.Raw(made.listed_tokens)
        strings: Any = msgspec.Raw(made.listed_strings)
        await exchange.respond_json(
            TokenizeResponse(
                count=made.num_tokens,
                max_model_len=exchange.server.llm.facts.longest_tokens,
                tokens=tokens,
                token_strs=strings,
            )
        )


def tokenize_job(context: TranslationContext, request: TokenizeRequest) -> PromptJob:
    """Return the job for a worker; raise ApiError for fields that exclude each other."""
    given = (request.prompt, request.messages, request.content)
    if sum(each is not None for each in given) != 1:
        raise invalid("give either prompt or messages, or content", "prompt")
    if request.prompt is not None:
        special = request.add_special_tokens is not False
        job = PromptJob(text=request.prompt, add_special_tokens=special)
    elif request.content is not None:
        if not request.parse_special:
            raise not_yet("parse_special", "special tokens in a text are always recognised")
        job = PromptJob(text=request.content, add_special_tokens=request.add_special)
    else:
        job = conversation_job(request, context, tool_use(request))
    return msgspec.structs.replace(
        job,
        wants_text=False,
        lists_tokens=True,
        lists_strings=bool(request.return_token_strs),
        lists_pieces=request.content is not None and request.with_pieces,
    )


async def detokenize(exchange: Exchange) -> None:
    """Return the text of token ids."""
    async with admitted(exchange):
        request, job, prepared = await read(exchange, DetokenizeRequest, detokenize_job)
        made = await prompt_of(exchange, job, prepared, TEMPLATE_NAMES)
        answer = DetokenizeResponse(prompt=made.text)
        if request.model is None:
            answer.content = made.text
        await exchange.respond_json(answer)


def detokenize_job(context: TranslationContext, request: DetokenizeRequest) -> PromptJob:
    """Return the job for a worker; raise ApiError for ids that do not exist."""
    facts = context.facts
    limit = 4 * facts.max_model_len
    if len(request.tokens) > limit:
        raise invalid(f"{len(request.tokens)} tokens are more than the limit of {limit}", "tokens")
    highest = max(request.tokens, default=0)
    if highest >= facts.vocabulary:
        raise invalid(
            f"the token id {highest} does not exist; ids are 0 to {facts.vocabulary - 1}",
            "tokens",
        )
    return PromptJob(packed_ids=packed(request.tokens))
