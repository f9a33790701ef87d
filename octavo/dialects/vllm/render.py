"""The routes that prepare a request without running it: what the engine would get."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TypeVar

import msgspec

from octavo.dialects.anthropic import messages
from octavo.dialects.anthropic.dialect import ID_PREFIX as MESSAGE_ID
from octavo.dialects.anthropic.schema import MessagesRequest
from octavo.dialects.cohere import chat as cohere
from octavo.dialects.cohere.schema import CohereChatRequest
from octavo.dialects.openai import chat, completions
from octavo.dialects.openai.dialect import CHAT_ID, COMPLETION_ID
from octavo.dialects.openai.schema.chat import ChatRequest
from octavo.dialects.openai.schema.completion import CompletionRequest
from octavo.dialects.openai.schema.sampling import CommonRequest
from octavo.dialects.openai.schema.shapes import StructuredOutputs
from octavo.dialects.responses import create
from octavo.dialects.responses.dialect import ID_PREFIX as RESPONSE_ID
from octavo.dialects.responses.schema import ResponsesRequest
from octavo.dialects.vllm.parse_context import context_of
from octavo.dialects.vllm.schema import RenderedRequest, TokenSampling
from octavo.serving.bounds.turns import Turns
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted
from octavo.serving.large_bodies import read
from octavo.serving.operation import GenerationRequest, PreparedRequest
from octavo.serving.preparation import prepare
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import invalid
from octavo.workers.jobs import PromptJob

R = TypeVar(
    "R", CompletionRequest, ChatRequest, ResponsesRequest, MessagesRequest, CohereChatRequest
)
# Of SamplingParams, in the same form.
_SAME = (
    *("n", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "seed"),
    *("include_stop_str_in_output", "ignore_eos", "logprobs", "prompt_logprobs"),
    *("skip_special_tokens", "spaces_between_special_tokens"),
)


async def render_chat(exchange: Exchange) -> None:
    """Handle POST /v1/chat/completions/render: respond with one request of token ids."""
    (made,) = await _rendered(exchange, ChatRequest, translate_chat, CHAT_ID)
    await exchange.respond_json(made)


async def render_completion(exchange: Exchange) -> None:
    """Handle POST /v1/completions/render: respond with a request for each prompt."""
    made = await _rendered(exchange, CompletionRequest, translate_completion, COMPLETION_ID)
    await exchange.respond_json(made)


def translate_chat(context: TranslationContext, request: ChatRequest) -> GenerationRequest:
    """Return the neutral form of a conversation, with what is to be reported of its tokens."""
    made = chat.translate(context, request)
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
    return _reporting(completions.translate(context, request), request, has_mask=False)


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


async def render_responses(exchange: Exchange) -> None:
    """Handle POST /v1/responses/render: respond with one request of token ids."""
    (made,) = await _rendered(exchange, ResponsesRequest, _input_alone, RESPONSE_ID)
    await exchange.respond_json(made)


async def render_cohere(exchange: Exchange) -> None:
    """Handle POST /v2/chat/render: respond with one request of token ids."""
    (made,) = await _rendered(exchange, CohereChatRequest, cohere.translate, "")
    await exchange.respond_json(made)


async def render_messages(exchange: Exchange) -> None:
    """Handle POST /v1/messages/render: respond with one request of token ids."""
    (made,) = await _rendered(exchange, MessagesRequest, messages.translate, MESSAGE_ID)
    await exchange.respond_json(made)


def _input_alone(context: TranslationContext, request: ResponsesRequest) -> GenerationRequest:
    """Return the neutral form of a request whose prompt depends on no response that is kept."""
    if request.previous_response_id is not None:
        raise invalid(
            "previous_response_id: a request is rendered without the responses that are kept; send "
            "the whole conversation as input",
            "previous_response_id",
        )
    return create.translate(context, request)


async def _rendered(
    exchange: Exchange,
    kind: type[R],
    translate: Callable[[TranslationContext, R], GenerationRequest],
    prefix: str,
) -> list[RenderedRequest]:
    async with admitted(exchange):
        server = exchange.server
        request, asked, made = await read(exchange, kind, translate)
        asked.prepared = made
        prepared = await prepare(server, asked, exchange.owner)
        rendered: list[RenderedRequest] = []
        turns = Turns()
        for index, prompt in enumerate(prepared.prompts):
            await turns.take()
            name = f"{prefix}{exchange.request_id}"
            each = RenderedRequest(
                request_id=name if len(prepared.prompts) == 1 else f"{name}-{index}",
                token_ids=prompt.token_ids,
                sampling_params=_sampling(prepared),
                model=server.model_name,
                stream=asked.is_stream,
                cache_salt=asked.cache_salt,
                priority=asked.priority,
            )
            if isinstance(request, CommonRequest):
                each.stream_options = request.stream_options
                each.return_token_ids = request.return_token_ids
                each.sampling_params.bad_words = request.bad_words
                each.sampling_params.repetition_detection = request.repetition_detection
                if request.return_prompt_text:
                    each.prompt_text = prompt.text
            if prompt.packed_places:
                ends = iter(array("i", prompt.packed_places))
                each.token_offsets = list(zip(ends, ends, strict=True))
            if prompt.answer_mask:
                each.assistant_tokens_mask = list(prompt.answer_mask)
            if isinstance(request, CompletionRequest):
                each.reasoning_ended = True  # what continues a text is text
            else:
                shown = getattr(request, "include_reasoning", None) is not False
                each.parse_context = context_of(asked.tools, include_reasoning=shown)
                end = server.llm.model.end_of(prompt.ids)
                each.reasoning_ended = server.context.formats.has_ended_reasoning(end)
            rendered.append(each)
        return rendered


def _sampling(prepared: PreparedRequest) -> TokenSampling:
    """Return the parameters after all defaults, in the form that the engine's route accepts."""
    sampling, asked = prepared.sampling, prepared.asked
    made = TokenSampling(**{name: getattr(sampling, name) for name in _SAME})
    for name in ("stop", "stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
        value = getattr(sampling, name)
        setattr(made, name, list(value) if value else None)
    made.extra_args = sampling.arguments or None
    if sampling.logit_bias:
        made.logit_bias = {str(token): bias for token, bias in sampling.logit_bias}
    if asked.shape is not None:
        shape = {
            each.name: getattr(asked.shape, each.name)
            for each in msgspec.structs.fields(StructuredOutputs)
            if hasattr(asked.shape, each.name)
        }
        if shape.get("choice"):
            shape["choice"] = list(shape["choice"])
        made.structured_outputs = StructuredOutputs(**shape)
    return made
