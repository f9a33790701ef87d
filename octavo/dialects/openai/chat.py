"""/v1/chat/completions: the translation of a conversation, its tools included."""

from __future__ import annotations

from functools import partial

from octavo.dialects.openai.beams import bind_beams
from octavo.dialects.openai.chat_writer import ChatWriter
from octavo.dialects.openai.common import hide_tokens
from octavo.dialects.openai.conversation import conversation_job
from octavo.dialects.openai.parameters import generation_request
from octavo.dialects.openai.schema.chat import ChatRequest
from octavo.dialects.openai.tools import tool_use
from octavo.serving.operation import GenerationRequest
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import invalid


def translate(context: TranslationContext, request: ChatRequest) -> GenerationRequest:
    """Return the neutral form of a request to continue a conversation."""
    context.check_model(request.model)
    wanted, named = request.max_completion_tokens, "max_completion_tokens"
    if wanted is None:
        wanted, named = request.max_tokens, "max_tokens"
    if wanted == 0:
        raise invalid(f"{named}=0 leaves no token for an answer; leave it out", named)
    logprobs = None
    if request.logprobs:
        logprobs = request.top_logprobs or 0
    elif request.top_logprobs:
        raise invalid("top_logprobs needs logprobs=true", "top_logprobs")
    elif request.logprob_token_ids:
        raise invalid("logprob_token_ids needs logprobs=true", "logprob_token_ids")
    use = tool_use(request)
    context.formats.check(use)
    job = conversation_job(request, context, use)
    asked = generation_request(request, [job], wanted, logprobs, partial(ChatWriter, use))
    context.formats.bind(asked, use, context.facts.vocabulary)
    if request.include_reasoning is False and context.formats.separates_reasoning:
        hide_tokens(asked)
    bind_beams(request, asked)
    return asked
