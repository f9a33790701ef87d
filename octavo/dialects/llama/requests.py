"""From the fields of llama.cpp's dialect to the neutral request."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from octavo.core.sampling_params import MAX_BIAS
from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.dialects.common.mixed import runs_in
from octavo.dialects.common.parameters import given_fields
from octavo.dialects.common.samplers import given_samplers
from octavo.dialects.common.shapes import shape_at
from octavo.dialects.llama.schema import (
    InfillRequest,
    LlamaCompletionRequest,
    LlamaSampling,
    PromptObject,
    is_one,
)
from octavo.dialects.llama.writer import LlamaWriter
from octavo.serving.operation import GenerationRequest
from octavo.serving.schema.prompts import MAX_PROMPTS
from octavo.serving.translation import TranslationContext
from octavo.text.pairs import Part
from octavo.text.pieces import Infill
from octavo.transport.errors import invalid, not_yet
from octavo.workers.jobs import PromptJob, packed

MAX_TEXT_CHARACTERS = 4096  # of all texts in logit_bias: each prompt's request holds their tokens
_NO_SEED = 2**32 - 1  # as -1: one is drawn
_SMALLEST_P = 1e-9  # instead of 0, which leaves one token too
# Neutral names of sampling values, and those of this dialect.
_SAMPLING = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "seed": "seed",
}
_NAMES = {
    **_SAMPLING,
    "max_tokens": "n_predict",
    "n": "n_cmpl",
    "logprobs": "n_probs",
    "bad_words_token_ids": "ignore_eos",
    "suffix": "input_suffix",
    "structured_outputs": "json_schema",
    "structured_outputs.json": "json_schema",
    "structured_outputs.grammar": "grammar",
}
# The letters that stand for samplers, in a text instead of a list.
_LETTERS = {
    "k": "top_k",
    "p": "top_p",
    "m": "min_p",
    "t": "temperature",
    "e": "penalties",
    "d": "dry",
    "y": "typ_p",
    "x": "xtc",
    "s": "top_n_sigma",
    "i": "infill",
    "a": "adaptive_p",
}
# These only order others, or have a field of their own, which is refused.
_WITHOUT_EFFECT = ("infill", "adaptive_p")


def translate_completion(
    context: TranslationContext, request: LlamaCompletionRequest
) -> GenerationRequest:
    """Return the neutral form of a request to continue one prompt or several."""
    given: Any = request.prompt
    if given == []:
        raise invalid("prompt is an empty list; give at least one text", "prompt")
    is_single = is_one(given)
    prompts = [given] if is_single else given
    if len(prompts) * _num_answers(request) > MAX_PROMPTS:
        raise invalid(
            f"{len(prompts)} prompts with n_cmpl={_num_answers(request)} are more than "
            f"{MAX_PROMPTS} texts",
            "prompt",
        )
    jobs = [
        _job(each, "prompt" if is_single else f"prompt[{index}]")
        for index, each in enumerate(prompts)
    ]
    is_list = not is_single or _num_answers(request) > 1
    return _generation(context, request, jobs, is_list=is_list)


def translate_infill(context: TranslationContext, request: InfillRequest) -> GenerationRequest:
    """Return the neutral form of a request for what stands between two texts."""
    infill = Infill(
        suffix=request.input_suffix,
        beginning=request.prompt,
        extra=[(each.filename or "", each.text) for each in request.input_extra or ()],
    )
    job = PromptJob(text=request.input_prefix, infill=infill)
    return _generation(context, request, [job], is_list=_num_answers(request) > 1)


def _job(given: str | PromptObject | list[Any], where: str) -> PromptJob:
    """Return the job for a worker that makes one prompt."""
    if isinstance(given, PromptObject):
        if given.multimodal_data:
            raise not_yet(f"{where}.multimodal_data", "this model reads text; leave it out")
        given = given.prompt_string
    if isinstance(given, str):
        return PromptJob(text=given)
    if not given:
        raise invalid(f"{where} is an empty list; give at least one token", where)
    if all(isinstance(each, int) for each in given):
        return PromptJob(packed_ids=packed(given))
    parts: list[Part] = []
    for each in runs_in(given, where):
        if isinstance(each, str):
            parts.append(Part(text=each, is_framed=not parts))  # only a beginning gets a mark
        else:
            parts.append(Part(packed_ids=packed(each)))
    return PromptJob(parts=parts)


def _num_answers(request: LlamaSampling) -> int:
    return request.n_cmpl or request.n or 1


def most_tokens(request: LlamaSampling) -> int | None:
    """Return the limit of an answer; None if there is none."""
    for each in (request.n_predict, request.max_tokens, request.max_completion_tokens):
        if each is not None:
            return None if each < 0 else each
    return None


def _generation(
    context: TranslationContext,
    request: LlamaSampling,
    jobs: list[PromptJob],
    *,
    is_list: bool,
) -> GenerationRequest:
    most = most_tokens(request)
    biases, texts = _biases(request)
    sampling = _sampling(context, request)
    if biases:
        sampling["logit_bias"] = biases
    return GenerationRequest(
        prompts=list(jobs),
        sampling=sampling,
        writer=partial(LlamaWriter, request, most, is_list),
        named=lambda error, index: error.renamed(_NAMES),
        default_max_tokens=1 if most == 0 else most,
        drops_output=most == 0,
        is_stream=bool(request.stream),
        wants_text=True,
        bad_words=[text for text, _ in texts],
        word_biases=[bias for _, bias in texts],
        bans_end=bool(request.ignore_eos),
        reports_prompt=bool(request.stream and request.return_progress),
        shape=_shape(request),
    )


def _sampling(context: TranslationContext, request: LlamaSampling) -> dict[str, Any]:
    """Return the neutral values of sampling; the server's own seed is that of each request."""
    sampling: dict[str, Any] = {"n": _num_answers(request)}
    if context.seed:
        sampling["seed"] = context.seed
    sampling.update(given_fields(request, _SAMPLING))
    if "temperature" in sampling:
        sampling["temperature"] = max(0.0, sampling["temperature"])
    if "top_p" in sampling:
        sampling["top_p"] = max(sampling["top_p"], _SMALLEST_P)
    options = given_samplers(request).get("sampler_options", {})
    if "typical_p" in options:
        options["typical_p"] = max(options["typical_p"], _SMALLEST_P)
    if request.samplers:
        options["samplers"] = _order(request.samplers)
        if not options["samplers"]:  # which would mean all
            options["samplers"], sampling["temperature"] = ["temperature"], 1.0
    if options:
        sampling["sampler_options"] = options
    seed = sampling.get("seed", 0)
    if seed < 0 or seed == _NO_SEED:
        del sampling["seed"]
    stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
    sampling["stop"] = [each for each in stops if each]
    if request.n_probs:
        sampling["logprobs"] = request.n_probs
    return sampling


def _order(samplers: list[str] | str) -> list[str]:
    """Return the names of a list, or of a text of letters, without those that have no effect."""
    if isinstance(samplers, str):
        samplers = [_LETTERS.get(letter, letter) for letter in samplers]
    return [name for name in samplers if name not in _WITHOUT_EFFECT]


def _biases(request: LlamaSampling) -> tuple[dict[str, float], list[tuple[str, float]]]:
    """Return what is added to the logits of tokens, and of the tokens of texts."""
    given: Any = request.logit_bias or ()
    pairs: Iterable[Any] = given.items() if isinstance(given, dict) else given
    tokens: dict[str, float] = {}
    texts: list[tuple[str, float]] = []
    for index, pair in enumerate(pairs):
        where = f"logit_bias[{index}]"
        if len(pair) != 2:
            raise invalid(f"{where} must be a pair of a token and a number", "logit_bias")
        key, bias = pair
        bias = -MAX_BIAS if bias is False else bias
        if isinstance(bias, bool) or not isinstance(bias, int | float):
            raise invalid(f"{where} must have a number, or false for never", "logit_bias")
        bias = max(-MAX_BIAS, min(MAX_BIAS, float(bias)))
        if isinstance(key, str) and not (key.isascii() and key.isdigit()):
            texts.append((key, bias))
        elif isinstance(key, int | str) and not isinstance(key, bool):
            tokens[str(key)] = bias
        else:
            raise invalid(f"{where} must begin with a token id or a text", "logit_bias")
    num_characters = sum(len(text) for text, _ in texts)
    if num_characters > MAX_TEXT_CHARACTERS:
        raise invalid(
            f"logit_bias has texts of {num_characters} characters together; at most "
            f"{MAX_TEXT_CHARACTERS} are accepted: send token ids",
            "logit_bias",
        )
    return tokens, texts


def _shape(request: LlamaSampling) -> StructuredOutputsParams | None:
    schema, grammar = request.json_schema, request.grammar
    if schema is not None and grammar:
        raise invalid(
            "json_schema and grammar describe a shape each, and an answer has one; send one",
            "grammar",
        )
    if grammar:
        return shape_at("grammar", grammar=grammar)
    return None if schema is None else shape_at("json_schema", json=schema)
