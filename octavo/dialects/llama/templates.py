"""/apply-template: the text that the chat template makes of a conversation."""

from __future__ import annotations

from octavo.dialects.common.conversation import TEMPLATE_NAMES, conversation_job
from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.usage import InputTokensResponse
from octavo.dialects.common.tools import tool_use
from octavo.dialects.llama.schema import TemplateResponse
from octavo.serving.bounds.biases import check_biases
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted
from octavo.serving.large_bodies import prompt_of, read
from octavo.serving.preparation import refusals
from octavo.serving.translation import TranslationContext
from octavo.workers.jobs import PromptJob

_COUNTED = "chat.completion.input_tokens"


async def apply_template(exchange: Exchange) -> None:
    """Handle POST /apply-template: respond with the text of a chat's prompt."""
    async with admitted(exchange):
        _, job, prepared = await read(exchange, ChatRequest, template_job)
        made = await prompt_of(exchange, job, prepared, TEMPLATE_NAMES)
        await exchange.respond_json(TemplateResponse(prompt=made.text))


async def count_tokens(exchange: Exchange) -> None:
    """Handle POST /v1/chat/completions/input_tokens: count the tokens of a chat's prompt."""
    async with admitted(exchange):
        _, job, prepared = await read(exchange, ChatRequest, template_job)
        made = await prompt_of(exchange, job, prepared, TEMPLATE_NAMES)
        await exchange.respond_json(
            InputTokensResponse(input_tokens=made.num_tokens, object=_COUNTED)
        )


def template_job(context: TranslationContext, request: ChatRequest) -> PromptJob:
    """Return the job for a worker that renders the conversation."""
    context.check_model(request.model)
    with refusals():
        check_biases(request.logit_bias or {}, context.facts.vocabulary)
    use = tool_use(request)
    context.formats.check(use)
    return conversation_job(request, context, use)
