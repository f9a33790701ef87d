"""The translation of a conversation in OpenAI's form, its tools included."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from octavo.dialects.common.beams import bind_beams
from octavo.dialects.common.conversation import conversation_job
from octavo.dialects.common.parameters import generation_request
from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.tools import tool_use
from octavo.dialects.common.writer import hide_tokens, no_writer
from octavo.serving.operation import GenerationRequest, Writer
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import invalid


def chat_request(
    context: TranslationContext, request: ChatRequest, writer: Callable[..., Writer] = no_writer
) -> GenerationRequest:
    """Return the neutral form of a request to continue a conversation.

    The writer is made of the request's tools and the request, besides what all are made of.
    """
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
    asked = generation_request(request, [job], wanted, logprobs, partial(writer, use))
    context.formats.bind(asked, use, context.facts.vocabulary)
    if request.include_reasoning is False and context.formats.separates_reasoning:
        hide_tokens(asked)
    bind_beams(request, asked)
    return asked
