"""From the fields of TGI's dialect to the neutral request."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.dialects.common.parameters import given_fields
from octavo.dialects.common.samplers import given_samplers
from octavo.dialects.common.shapes import shape_at
from octavo.dialects.tgi.schema import (
    TgiGenerateRequest,
    TgiGrammar,
    TgiParameters,
    TgiRequest,
    TgiStreamRequest,
)
from octavo.dialects.tgi.writer import TgiWriter
from octavo.serving.operation import GenerationRequest
from octavo.serving.translation import TranslationContext
from octavo.transport.errors import invalid, not_yet
from octavo.workers.jobs import PromptJob

DEFAULT_TOKENS = 100
_DRAWS = ("temperature", "top_k", "top_p")  # that only have a meaning where tokens are drawn
_SAME = (*_DRAWS, "repetition_penalty", "frequency_penalty", "seed", "stop")
_NAMES = {
    **{name: f"parameters.{name}" for name in _SAME},
    "typical_p": "parameters.typical_p",
    "max_tokens": "parameters.max_new_tokens",
    "logprobs": "parameters.top_n_tokens",
    "prompt_logprobs": "parameters.decoder_input_details",
    "prompt": "inputs",
    "structured_outputs": "parameters.grammar.value",
    "structured_outputs.json": "parameters.grammar.value",
    "structured_outputs.regex": "parameters.grammar.value",
}
# Values that ask for nothing, and why others are refused.
_OFF: dict[str, tuple[tuple[Any, ...], str]] = {
    "best_of": ((0, 1), "the best of several answers is not selected; send 1"),
    "watermark": ((False,), "texts are not watermarked; send false"),
}


def translate(context: TranslationContext, request: TgiRequest) -> GenerationRequest:
    """Return the neutral form of a request to /, whose whole answer is a list."""
    is_stream = bool(request.stream)
    return _generation(context, request, is_list=True, is_stream=is_stream)


def translate_whole(context: TranslationContext, request: TgiGenerateRequest) -> GenerationRequest:
    """Return the neutral form of a request to /generate, whose answer is an object."""
    return _generation(context, request, is_list=False, is_stream=False)


def translate_stream(context: TranslationContext, request: TgiStreamRequest) -> GenerationRequest:
    """Return the neutral form of a request to /generate_stream."""
    return _generation(context, request, is_list=False, is_stream=True)


def _generation(
    context: TranslationContext, request: TgiRequest, *, is_list: bool, is_stream: bool
) -> GenerationRequest:
    given = request.parameters or TgiParameters()
    for name, (harmless, why) in _OFF.items():
        if getattr(given, name) not in (None, *harmless):
            raise not_yet(f"parameters.{name}", why)
    if given.decoder_input_details and is_stream:
        name = "parameters.decoder_input_details"
        raise invalid(f"{name}: a stream does not have the tokens of the input", name)
    longest = context.facts.longest_tokens  # a longer prompt would be refused in any case
    return GenerationRequest(
        prompts=[PromptJob(text=request.inputs)],
        sampling=_sampling(given, is_stream=is_stream),
        writer=partial(TgiWriter, given, is_list),
        named=lambda error, index: error.renamed(_NAMES),
        max_tokens=given.max_new_tokens,
        default_max_tokens=DEFAULT_TOKENS,
        is_stream=is_stream,
        wants_text=bool(given.return_full_text or given.decoder_input_details),
        keep_tokens=None if given.truncate is None else min(given.truncate, longest),
        shape=None if given.grammar is None else _shape(given.grammar),
    )


def _sampling(given: TgiParameters, *, is_stream: bool) -> dict[str, Any]:
    """Return the neutral values of sampling; without a sign that tokens be drawn, none are."""
    sampling: dict[str, Any] = {"include_stop_str_in_output": True}
    is_drawn = given.do_sample or any(getattr(given, name) is not None for name in _DRAWS)
    if not (is_drawn or given.typical_p not in (None, 1)):
        sampling["temperature"] = 0.0
    sampling.update(given_fields(given, _SAME))
    sampling.update(given_samplers(given))
    if is_stream or given.details:
        sampling["logprobs"] = given.top_n_tokens or 0
    if given.decoder_input_details and given.details:
        sampling["prompt_logprobs"] = 0
    return sampling


def _shape(grammar: TgiGrammar) -> StructuredOutputsParams:
    where = "parameters.grammar.value"
    value = grammar.value
    if grammar.type == "json_schema":
        value = value.get("schema") if isinstance(value, dict) else None
        where += ".schema"
    if grammar.type == "regex":
        return shape_at(where, regex=value)
    try:
        if isinstance(value, str):
            value = msgspec.json.decode(value)
        if isinstance(value, dict):
            return shape_at(where, json=value)
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(f"{where} is a text that is no JSON: {error}", where) from None
    raise invalid(f"{where} must be a JSON schema, which is an object", where)
