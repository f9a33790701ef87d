"""The preparation of a request without running it: what the engine would get."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import TypeVar

import msgspec

from octavo.dialects.common.parse_context import context_of
from octavo.dialects.common.samplers import fields_of
from octavo.dialects.common.schema.completion import CompletionRequest
from octavo.dialects.common.schema.rendered import RenderedRequest, TokenSampling
from octavo.dialects.common.schema.sampling import CommonRequest
from octavo.dialects.common.schema.shapes import StructuredOutputs
from octavo.serving.bounds.turns import Turns
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted
from octavo.serving.large_bodies import read
from octavo.serving.operation import GenerationRequest, PreparedRequest
from octavo.serving.preparation import prepare
from octavo.serving.translation import TranslationContext
from octavo.transport.route import Handler

R = TypeVar("R", bound=msgspec.Struct)
# Of SamplingParams, in the same form.
_SAME = (
    *("n", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "seed"),
    *("include_stop_str_in_output", "ignore_eos", "logprobs", "prompt_logprobs"),
    *("skip_special_tokens", "spaces_between_special_tokens", "speculation"),
)


def rendering(
    kind: type[R], translate: Callable[[TranslationContext, R], GenerationRequest], prefix: str
) -> Handler:
    """Return the handler of a route that responds with one request of token ids."""

    async def render(exchange: Exchange) -> None:
        (made,) = await rendered(exchange, kind, translate, prefix)
        await exchange.respond_json(made)

    return render


async def rendered(
    exchange: Exchange,
    kind: type[R],
    translate: Callable[[TranslationContext, R], GenerationRequest],
    prefix: str,
) -> list[RenderedRequest]:
    """Return a request of token ids for each prompt of the body; ids begin with the prefix."""
    async with admitted(exchange):
        server = exchange.server
        request, asked, made = await read(exchange, kind, translate)
        asked.prepared = made
        prepared = await prepare(server, asked, exchange.owner)
        requests: list[RenderedRequest] = []
        turns = Turns()
        for index, prompt in enumerate(prepared.prompts):
            await turns.take()
            name = f"{prefix}{exchange.request_id}"
            each = RenderedRequest(
                request_id=name if len(prepared.prompts) == 1 else f"{name}-{index}",
                token_ids=prompt.token_ids,
                sampling_params=_sampling(prepared),
                model=exchange.model_name,
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
            requests.append(each)
        return requests


def _sampling(prepared: PreparedRequest) -> TokenSampling:
    """Return the parameters after all defaults, in the form that the engine's route accepts."""
    sampling, asked = prepared.sampling, prepared.asked
    same = {name: getattr(sampling, name) for name in _SAME}
    made = TokenSampling(**same, **fields_of(sampling.sampler_options))
    for name in ("stop", "stop_token_ids", "allowed_token_ids", "logprob_token_ids"):
        value = getattr(sampling, name)
        setattr(made, name, list(value) if value else None)
    made.extra_args = sampling.arguments or None
    made.prediction = array("i", prepared.prompts[0].packed_prediction).tolist() or None
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
