"""The routes that are vLLM's own, and the handlers of those that render or report the state."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from octavo.dialects.common.completions import completion_request
from octavo.dialects.common.dialect import CHAT_ID, COMPLETION_ID
from octavo.dialects.common.parameters import chat_request
from octavo.dialects.common.render import rendered, rendering
from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.completion import CompletionRequest
from octavo.dialects.common.schema.rendered import RenderedRequest
from octavo.dialects.common.schema.sampling import CommonRequest
from octavo.dialects.vllm import tokens
from octavo.dialects.vllm.derender import derender_chat, derender_completion
from octavo.dialects.vllm.derender_schema import (
    DerenderChatRequest,
    DerenderCompletionRequest,
    DerenderedChat,
    DerenderedChatChunk,
    DerenderedCompletion,
    DerenderedCompletionChunk,
)
from octavo.dialects.vllm.schema import TokensChunk, TokensRequest, TokensResponse
from octavo.serving import status_routes
from octavo.serving.ending import AbortRequests, end
from octavo.serving.exchange import Exchange
from octavo.serving.generate import generating
from octavo.serving.operation import GenerationRequest
from octavo.serving.translation import TranslationContext
from octavo.text.token_table import TokenTable
from octavo.transport.errors import invalid
from octavo.transport.route import Route
from octavo.workers.jobs import PromptJob

CONFIG = "tokenizer_config.json"
MAX_CONFIG_BYTES = 4 << 20


async def load(exchange: Exchange) -> None:
    """Respond with the number of requests that wait or run."""
    await exchange.respond_json({"server_load": exchange.server.admission.num_open})


async def tokenizer_info(exchange: Exchange) -> None:
    """Respond with the tokenizer's configuration, or what is known of one that has no file."""
    model = exchange.server.llm.model
    path = Path(str(model.source.tokenizer_path))
    found = await asyncio.to_thread(_configuration, path)
    await exchange.respond_json({**_known(model.tokenizer), **found})


async def abort(exchange: Exchange) -> None:
    """End requests of the same key; their clients get the tokens so far.

    A name that no request has, or has any more, is no error: it may have ended meanwhile.
    """
    asked = await exchange.read(AbortRequests)
    names, server = set(asked.request_ids), exchange.server
    for active in list(server.active.values()):
        record = active.record
        if record.request_id in names and record.owner == exchange.owner:
            await end(server, active)
    await exchange.respond(b"{}")


def _known(tokenizer: TokenTable) -> dict[str, Any]:
    """Return what the table of tokens says, in the form of a configuration."""
    templates = tokenizer.chat_templates
    special = tokenizer.special_ids
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **tokenizer.special_tokens,
        "added_tokens_decoder": {
            str(token): {"content": text, "special": token in special}
            for token, text in tokenizer.added_tokens.items()
        },
        "chat_template": templates.get("default"),
    }


def _configuration(path: Path) -> dict[str, Any]:
    """Return the configuration beside a tokenizer; nothing if it is missing or no object."""
    file = (path if path.is_dir() else path.parent) / CONFIG
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            return {}
        found = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


async def render_completion(exchange: Exchange) -> None:
    """Handle POST /v1/completions/render: respond with a request for each prompt."""
    made = await rendered(exchange, CompletionRequest, translate_completion, COMPLETION_ID)
    await exchange.respond_json(made)


def translate_chat(context: TranslationContext, request: ChatRequest) -> GenerationRequest:
    """Return the neutral form of a conversation, with what is to be reported of its tokens."""
    made = chat_request(context, request)
    return _reporting(made, request, has_mask=bool(request.return_assistant_tokens_mask))


def translate_completion(
    context: TranslationContext, request: CompletionRequest
) -> GenerationRequest:
    """Return the neutral form of prompts, with what is to be reported of their tokens."""
    if request.return_token_offsets and request.suffix:
        raise invalid(
            "return_token_offsets is for one text, and the prompt is made of two with suffix",
            "return_token_offsets",
        )
    return _reporting(completion_request(context, request), request, has_mask=False)


def _reporting(
    asked: GenerationRequest, request: CommonRequest, *, has_mask: bool
) -> GenerationRequest:
    """Let the worker say where the tokens of texts are; token ids are in no text."""
    if asked.beams is not None:
        name = "use_beam_search"
        raise invalid(f"{name}: /inference/v1/generate has no beam search", name)
    wants = {"wants_places": bool(request.return_token_offsets), "wants_answers": has_mask}
    asked.prompts = [
        msgspec.structs.replace(each, **wants) if isinstance(each, PromptJob) else each
        for each in asked.prompts
    ]
    return asked


VLLM_ROUTES: Sequence[Route] = (
    Route(
        *("POST", "/v1/chat/completions/render", rendering(ChatRequest, translate_chat, CHAT_ID)),
        "The request of a conversation as token ids, without running it.",
        *(ChatRequest, RenderedRequest),
    ),
    Route(
        *("POST", "/v1/completions/render", render_completion),
        "The requests of prompts as token ids, in a list, without running them.",
        CompletionRequest,
    ),
    Route(
        *("POST", "/v1/chat/completions/derender", derender_chat),
        "Make answers to a conversation of tokens that another server has generated.",
        *(DerenderChatRequest, DerenderedChat, DerenderedChatChunk),
    ),
    Route(
        *("POST", "/v1/completions/derender", derender_completion),
        "Make continuations of tokens that another server has generated.",
        *(DerenderCompletionRequest, DerenderedCompletion, DerenderedCompletionChunk),
    ),
    Route(
        *("POST", "/inference/v1/generate"),
        generating(TokensRequest, tokens.translate),
        "Continue token ids with token ids.",
        *(TokensRequest, TokensResponse, TokensChunk),
    ),
    Route(
        *("POST", "/inference/v1/abort_requests", abort),
        "End requests of the same key; their clients get the tokens so far.",
        AbortRequests,
    ),
    Route("GET", "/tokenizer_info", tokenizer_info, "The tokenizer's configuration."),
    Route("GET", "/load", load, "The number of requests that wait or run."),
    Route("GET", "/ping", status_routes.ready, "The same as /health/ready, for SageMaker."),
    Route("POST", "/ping", status_routes.ready, "The same as /health/ready, for SageMaker."),
)
