"""The part of the table of routes that has llama.cpp's own, and its other paths."""

from __future__ import annotations

from collections.abc import Sequence

from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.usage import InputTokensResponse
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
from octavo.dialects.llama.templates import apply_template, count_tokens
from octavo.serving import status_routes
from octavo.serving.generate import generating
from octavo.transport.route import Route

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
