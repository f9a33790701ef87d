"""The routes that prepare a request without running it: what the engine would get."""

from __future__ import annotations

import msgspec

from octavo.dialects.common.chat import chat_request
from octavo.dialects.common.completions import completion_request
from octavo.dialects.common.dialect import COMPLETION_ID
from octavo.dialects.common.render import rendered
from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.completion import CompletionRequest
from octavo.dialects.common.schema.sampling import CommonRequest
from octavo.serving.exchange import Exchange
from octavo.serving.operation import GenerationRequest
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import invalid
from octavo.workers.jobs import PromptJob


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
