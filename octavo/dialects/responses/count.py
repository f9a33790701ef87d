"""POST /v1/responses/input_tokens: the number of tokens that precede an answer."""

from __future__ import annotations

import msgspec

from octavo.api.pooling.tasks import check_generates
from octavo.dialects.common.schema.usage import InputTokensResponse
from octavo.dialects.responses.conversation import PROMPT_NAMES, conversation_job
from octavo.dialects.responses.create import items_before
from octavo.dialects.responses.items import as_array
from octavo.dialects.responses.schema import InputTokensRequest
from octavo.dialects.responses.tools import tool_use
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted
from octavo.serving.large_bodies import prompt_of, read_with
from octavo.serving.preparation import PLACES, refusals
from octavo.serving.translation import TranslationContext
from octavo.workers.jobs import PromptJob


async def count(exchange: Exchange) -> None:
    """Return the number of tokens of a prompt."""
    async with admitted(exchange):
        body = await exchange.body()
        before = await items_before(exchange, body)
        given = (as_array(before),) if before else ()
        read = await read_with(exchange, body, InputTokensRequest, count_job, given)
        made = await prompt_of(exchange, read.asked, read.prompts, PROMPT_NAMES)
        await exchange.respond_json(InputTokensResponse(input_tokens=made.num_tokens))


def count_job(
    context: TranslationContext, request: InputTokensRequest, earlier: bytes = b""
) -> PromptJob:
    """Return the job that makes the prompt; `earlier` has the items before the request's own."""
    context.check_model(request.model)
    with refusals():
        check_generates(context.facts, PLACES)
    use = tool_use(request)
    context.formats.check(use)
    job = conversation_job(request, context, use, earlier)
    return msgspec.structs.replace(job, wants_text=False)
