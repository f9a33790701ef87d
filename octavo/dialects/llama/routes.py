"""The routes of llama.cpp, its other paths, and handlers: of a chat's prompt and of the state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from octavo.dialects.common.conversation import TEMPLATE_NAMES, conversation_job
from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.usage import InputTokensResponse
from octavo.dialects.common.tools import tool_use
from octavo.dialects.llama import adapters
from octavo.dialects.llama.dialect import LLAMA
from octavo.dialects.llama.requests import translate_completion, translate_infill
from octavo.dialects.llama.router import ROUTER_ROUTES
from octavo.dialects.llama.schema import (
    InfillRequest,
    LlamaAnswer,
    LlamaChunk,
    LlamaCompletionRequest,
    TemplateResponse,
)
from octavo.dialects.llama.settings import default_settings
from octavo.serving import status_routes
from octavo.serving.bounds.biases import check_biases
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted, generating
from octavo.serving.large_bodies import prompt_of, read
from octavo.serving.preparation import refusals
from octavo.serving.server import VERSION
from octavo.serving.translation import TranslationContext
from octavo.text.token_table import TokenTable
from octavo.transport.errors import ApiError
from octavo.transport.route import Route
from octavo.workers.jobs import PromptJob


async def props(exchange: Exchange) -> None:
    """Respond with the facts about the model and the parameters of requests that set none."""
    server = exchange.server
    facts, model = server.llm.facts, server.llm.model
    tokenizer = model.tokenizer
    templates, named = tokenizer.chat_templates, tokenizer.special_tokens
    found: dict[str, Any] = {
        "default_generation_settings": {
            "params": default_settings(model),
            "n_ctx": facts.longest_tokens,
        },
        "total_slots": facts.max_num_seqs,
        "model_alias": server.model_name,
        "model_ftype": facts.weight_type,
        "model_path": _path(facts.directory, facts.weights),
        "modalities": {"vision": False, "video": False, "audio": False},
        "endpoint_slots": server.config.list_slots,
        "endpoint_props": False,
        "endpoint_metrics": True,
        "chat_template": server.config.chat_template or templates.get("default", ""),
        "bos_token": named.get("bos_token", ""),
        "eos_token": named.get("eos_token", ""),
        "build_info": f"octavo-{VERSION}",
        "is_sleeping": server.llm.is_sleeping,
    }
    if "tool_use" in templates and not server.config.chat_template:
        found["chat_template_tool_use"] = templates["tool_use"]
    await exchange.respond_json(found)


async def slots(exchange: Exchange) -> None:
    """Respond with one object for each sequence that can run at once.

    Sequences have no fixed slots here: the first of the list are those in use. Texts and parameters
    of requests are not listed.
    """
    server = exchange.server
    if not server.config.list_slots:
        raise ApiError(
            501, "this server lists no slots (--no-slots); leave the flag out", code="no_slots"
        )
    facts = server.llm.facts
    in_use = min(server.admission.num_open, facts.max_num_seqs)
    await exchange.respond_json(
        [
            {
                "id": index,
                "n_ctx": facts.longest_tokens,
                "speculative": False,
                "is_processing": index < in_use,
            }
            for index in range(facts.max_num_seqs)
        ]
    )


def _path(directory: str, weights: tuple[str, ...]) -> str:
    """Return the name of the model's file, or of its directory; not where it is."""
    if len(weights) == 1 and weights[0].endswith(".gguf"):
        return Path(weights[0]).name
    return Path(directory).name


_COUNTED = "chat.completion.input_tokens"


async def apply_template(exchange: Exchange) -> None:
    """Handle POST /apply-template: respond with the text of a chat's prompt."""
    async with admitted(exchange):
        _, job, prepared = await read(exchange, ChatRequest, template_job)
        made = await prompt_of(exchange, job, prepared, TEMPLATE_NAMES)
        text = _without_mark(exchange.server.llm.model.tokenizer, made.text)
        await exchange.respond_json(TemplateResponse(prompt=text))


def _without_mark(tokenizer: TokenTable, text: str) -> str:
    """Return a prompt without the mark of its beginning, which /completion adds itself."""
    mark, first = tokenizer.special_tokens.get("bos_token", ""), tokenizer.marks[:1]
    if not mark or [*map(tokenizer.id_to_token, first)] != [mark]:
        return text
    return text.removeprefix(mark)


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
    Route(
        *("GET", "/slots", slots),
        "How many sequences run, for llama.cpp's clients.",
        dialect=LLAMA,
    ),
    Route("GET", "/lora-adapters", adapters.listed, "The adapters, for llama.cpp's clients."),
    Route(
        *("POST", "/lora-adapters", adapters.set_scales),
        "Set the adapter of requests that name none, for llama.cpp's clients.",
    ),
    *ROUTER_ROUTES,
    Route("GET", "/v1/health", status_routes.ready, "The same as /health/ready."),
)
