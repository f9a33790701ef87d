"""The part of the table of routes that has llama.cpp's own, and its other paths."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.server import status_routes
from octavo.server.generate import generating
from octavo.server.http.route import Route
from octavo.server.llama.dialect import LLAMA
from octavo.server.llama.requests import translate_completion, translate_infill
from octavo.server.llama.schema import (
    InfillRequest,
    LlamaAnswer,
    LlamaChunk,
    LlamaCompletionRequest,
    TemplateResponse,
)
from octavo.server.llama.state import props, slots
from octavo.server.llama.templates import apply_template, count_tokens
from octavo.server.openai import chat
from octavo.server.openai.models import models
from octavo.server.openai.schema.chat import ChatChunk, ChatRequest, ChatResponse
from octavo.server.responses.schema import InputTokensResponse

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
    Route(
        *("POST", "/chat/completions", generating(ChatRequest, chat.translate)),
        "The same as /v1/chat/completions, for llama.cpp's clients.",
        *(ChatRequest, ChatResponse, ChatChunk),
    ),
    Route("GET", "/models", models, "The same as /v1/models, for llama.cpp's clients."),
    Route("GET", "/v1/health", status_routes.ready, "The same as /health/ready."),
)
