"""The routes of llama.cpp, its other paths, and the handlers of those about a chat's prompt."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.common.conversation import TEMPLATE_NAMES, conversation_job
from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.usage import InputTokensResponse
from octavo.dialects.common.tools import tool_use
from octavo.dialects.llama.dialect import LLAMA
from octavo.dialects.llama.requests import translate_completion, translate_infill
from octavo.dialects.llama.schema import (
    InfillRequest,
    LlamaAnswer,
    LlamaChunk,
    LlamaCompletionRequest,
    TemplateResponse,
)
from octavo.dialects.llama.state import props, slots
from octavo.serving import status_routes
from octavo.serving.bounds.biases import check_biases
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted, generating
from octavo.serving.large_bodies import prompt_of, read
from octavo.serving.preparation import refusals
from octavo.serving.translation import TranslationContext
from octavo.transport.route import Route
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


_COMPLETION = generating(LlamaCompletionRequest, translate_completion)

LLAMA_ROUTES: Sequence[Route] = (
    *(
        Route(
            *("POST", path, _COMPLETION),
            "Continue texts or token ids, in llama.cpp's dialect.",
            *(LlamaCompletionRequest, LlamaAnswer, LlamaChunk),
            dialect=LLAMA,
            may_list=True,
        )
        for path in ("/completion", "/completions")
    ),
    Route(
        *("POST", "/infill", generating(InfillRequest, translate_infill)),
        "Write what stands between two texts, in llama.cpp's dialect.",
        *(InfillRequest, LlamaAnswer, LlamaChunk),
        dialect=LLAMA,
        may_list=True,
    ),
    Route(
        *("POST", "/apply-template", apply_template),
        "The prompt of a conversation as a text.",
        *(ChatRequest, TemplateResponse),
        dialect=LLAMA,
    ),
    *(
        Route(
            *("POST", path, count_tokens),
            "The number of tokens of a conversation.",
            *(ChatRequest, InputTokensResponse),
        )
        for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens")
    ),
    Route("GET", "/props", props, "The facts about the model, for llama.cpp's clients."),
    Route("GET", "/slots", slots, "How many sequences run, for llama.cpp's clients."),
    Route("GET", "/v1/health", status_routes.ready, "The same as /health/ready."),
)
