"""From a neutral request to checked ones: prompts are tokenised, limits applied, bounds checked."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import msgspec
from msgspec import structs

from octavo.api.breakers import with_breaker_tokens
from octavo.api.outputs import RequestError
from octavo.api.pooling.inputs import check_most, longest_prompt
from octavo.api.pooling.served import check_generates
from octavo.api.prompts import Input, check_ids
from octavo.api.reading import Reading
from octavo.api.requests import (
    PLAIN,
    TOO_LONG,
    CheckedRequest,
    Options,
    check_request,
    check_room,
    distinct,
)
from octavo.api.shapes import shape_error
from octavo.core.sampling_params import (
    NO_LIMIT,
    RequestOutputKind,
    SamplerOptions,
    SamplingParams,
    read_sampler_options,
)
from octavo.formats.deltas import PlainText
from octavo.grammar.checked import CheckedShape, Key, ShapeJob, job_of
from octavo.serving.answers.labels import label_tokens
from octavo.serving.bounds.biases import check_biases, with_words
from octavo.serving.bounds.pieces import in_pieces
from octavo.serving.bounds.response_size import check_response_size
from octavo.serving.bounds.turns import Turns
from octavo.serving.operation import GenerationRequest, PreparedRequest
from octavo.serving.server import Server
from octavo.transport.errors import ApiError, invalid
from octavo.wire.facts import EngineFacts
from octavo.workers.answer_shape import AnswerJob
from octavo.workers.jobs import PreparedPrompt, PromptJob, Refused, packed
from octavo.workers.pool import refusal

NO_SHAPE = CheckedShape()
TOOL_FIELDS = ("tools", "functions")  # the fields of errors that are not about a shape
PLACES = {"embed": "/v1/embeddings", "classify": "/classify", "score": "/score, /rerank"}
_FROM_MODEL = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


async def prepare(
    server: Server, asked: GenerationRequest, owner: str, *, is_background: bool = False
) -> PreparedRequest:
    """Tokenise the prompts and check all bounds; raise ApiError with the field that is wrong.

    `owner` is the key of the client; work in the background yields to all other work.
    """
    prompts = await _prepared(server, asked, owner)
    await _spell_end(server, asked)
    owners: list[int] | None = None
    lengths = [prompt.num_tokens for prompt in prompts]
    if asked.most_in_pieces is not None:
        prompts, owners = in_pieces(asked, prompts, longest_prompt(server.llm.model.facts))
    num_beams = 1 if asked.beams is None else asked.sampling.get("n", 1)
    _check_total(server, asked, prompts, num_beams)
    _check_room(server, asked, prompts)
    shape = await _checked_shape(server, asked, prompts, owner)
    try:
        sampling = _sampling(server, asked, prompts, shape)
        predicted = array("i", prompts[0].packed_prediction)
        if predicted:
            check_ids(predicted, server.llm.model.facts.vocabulary, "prediction")
    except RequestError as error:
        raise asked.named(refused_by(error), 0) from None
    if not asked.is_stream:
        vocabulary = server.llm.model.facts.vocabulary
        try:
            limit, width = server.config.max_response_bytes, 0
            if sampling.pooling is not None:
                width = server.llm.facts.pooling.width_behind(sampling.pooling.head)
            check_response_size(sampling, lengths, vocabulary, limit, width)
        except ApiError as error:
            raise asked.named(error, 0) from None
    options = _options(server, asked, owner, is_background=is_background)
    model = server.llm.model
    checked: list[CheckedRequest] = []
    turns = Turns()
    for prepared in prompts:
        await turns.take()
        try:
            if not prepared.packed_ids and prepared.num_tokens:  # too long to be sent here
                check_room(model, sampling, prepared.num_tokens)
            ids = check_ids(prepared.ids, model.facts.vocabulary)
            given = Input(prepared.text or None, ids)
            reading = None
            if asked.reading is not None:
                reading = asked.reading(model.end_of(ids))
            if asked.keeps_apart:
                reading = structs.replace(reading or Reading(PlainText), keeps_apart=True)
            own = sampling
            if prepared.second_from and sampling.pooling is not None:
                pooling = replace(sampling.pooling, second_from=prepared.second_from)
                own = replace(sampling, pooling=pooling)
            checked.append(check_request(model, given, own, options, None, reading, predicted))
        except RequestError as error:
            wrong = refused_by(error)
            place = len(checked) if owners is None else owners[len(checked)]
            raise asked.named(wrong, place) from None
    return PreparedRequest(
        asked, prompts, sampling, checked, owners, [*asked.warnings, *_warnings(asked, shape)]
    )


def _options(
    server: Server, asked: GenerationRequest, owner: str, *, is_background: bool
) -> Options:
    """Return the settings of a request besides its sampling."""
    # Requests share cached prefixes within a scope: the server's, a key's or a salt's.
    scope = owner if server.config.cache_scope == "key" else ""
    if asked.cache_salt is not None:
        scope = f"{scope}/{asked.cache_salt}"
    given = (asked.priority, asked.lora, scope, owner, is_background, asked.reports_prompt)
    if not any(given):
        return PLAIN
    return Options(
        priority=asked.priority,
        lora=asked.lora,
        cache_scope=scope,
        owner=owner,
        weight=server.config.key_weights.get(owner, 1.0),
        is_background=is_background,
        reports_prompt=asked.reports_prompt,
    )


@contextmanager
def refusals() -> Iterator[None]:
    """Turn errors of the checks into responses."""
    try:
        yield
    except RequestError as error:
        raise refused_by(error) from None


def refused_by(error: RequestError) -> ApiError:
    """Return the response to a request that a check has refused."""
    refused = invalid(str(error), error.param, error.code)
    refused.room = error.room
    return refused


async def _spell_end(server: Server, asked: GenerationRequest) -> None:
    """Let the model know the text that ends reasoning before the first request that may need it."""
    reasoning, model = server.context.formats.formats.reasoning, server.llm.model
    text = "" if reasoning is None else reasoning.forced_end
    needs_it = asked.sampling.get("thinking_token_budget") is not None
    if text and needs_it and not model.has_forced_end:
        job = PromptJob(text=text, add_special_tokens=False)
        tokens = (await server.prompt_pool.prepare(job)).token_ids
        if not model.has_forced_end:  # by another request meanwhile
            model.force_end(tokens)


def jobs_of(
    asked: GenerationRequest | PromptJob, facts: EngineFacts, *, logs_prompts: bool
) -> list[PromptJob]:
    """Return the jobs for a prompt worker that make the prompts of a request.

    Raise ApiError for a request to generate with a model that does not: it may have no chat
    template to name in an error.
    """
    if isinstance(asked, PromptJob):
        return [asked]
    keep = asked.keep_tokens
    with refusals():
        if not asked.is_about_prompts:
            check_generates(facts, PLACES)
        check_most(keep, facts.longest_tokens, "what the answer leaves free")
    if keep == -1:
        wanted = asked.max_tokens or asked.default_max_tokens or 1
        keep = max(1, facts.longest_tokens - wanted)
    fit: int | None = None
    if asked.drops_turns:
        wanted = min(asked.max_tokens or asked.default_max_tokens or 1, facts.longest_tokens // 4)
        fit = max(1, facts.longest_tokens - wanted)
    jobs: list[PromptJob] = []
    given = asked.prediction
    text, ids = (given, []) if isinstance(given, str) else ("", given)
    for prompt in asked.prompts:
        is_ids = not isinstance(prompt, PromptJob)
        job = PromptJob(packed_ids=packed(prompt)) if isinstance(prompt, list) else prompt
        job = msgspec.structs.replace(
            job,
            keep_tokens=keep,
            keeps_end=asked.keeps_end,
            keeps_frame=asked.keeps_frame,
            fit_tokens=fit,
            max_tokens=asked.most_in_pieces or facts.max_model_len,
            wants_text=asked.wants_text or (logs_prompts and not is_ids),
            bad_words=[] if jobs else asked.bad_words,  # they are tokenised once
            breakers=[] if jobs else _breakers(asked),
            prediction="" if jobs else text,
            packed_prediction=b"" if jobs else packed(ids),
        )
        jobs.append(job)
    return jobs


def _breakers(asked: GenerationRequest) -> list[str]:
    """Return the texts over which no repetition reaches, if the request has a penalty for some."""
    try:
        options = read_sampler_options(asked.sampling.get("sampler_options", SamplerOptions()))
    except RequestError:  # it is refused later, with all its parameters
        return []
    return [*options.dry_sequence_breakers] if options is not None and options.has_dry else []


async def _prepared(server: Server, asked: GenerationRequest, owner: str) -> list[PreparedPrompt]:
    """Return the prompts that a worker has prepared; raise ApiError for one that is refused."""
    made = asked.prepared
    if made is None:
        facts, logs = server.llm.facts, server.config.log_prompts
        jobs = jobs_of(asked, facts, logs_prompts=logs)
        if all(_is_ready(job) for job in jobs):
            made = [_ready(job) for job in jobs]
        else:
            try:
                made = await server.prompt_pool.prepare_all(jobs, owner)
            except ApiError as error:
                raise (asked.named(error, 0) if len(jobs) == 1 else error) from None
    asked.prompts, asked.prediction = [], ""  # texts would be kept until the answer has ended
    prompts: list[PreparedPrompt] = []
    for prompt in made:
        if isinstance(prompt, Refused):
            raise asked.named(refusal(prompt), len(prompts))
        prompts.append(prompt)
    return prompts


def _is_ready(job: PromptJob) -> bool:
    """Return whether a prompt of token ids needs no worker."""
    needs_worker = job.wants_text or job.bad_words or job.breakers or job.prediction
    return bool(job.packed_ids) and not needs_worker


def _ready(job: PromptJob) -> PreparedPrompt:
    """Return a prompt of token ids, cut as the request asks."""
    ids, keep = array("i", job.packed_ids), job.keep_tokens
    if keep is not None and len(ids) > keep:
        ids = ids[len(ids) - keep :] if job.keeps_end else ids[:keep]
    predicted = job.packed_prediction
    return PreparedPrompt(
        packed_ids=ids.tobytes(), num_tokens=len(ids), packed_prediction=predicted
    )


def _check_total(
    server: Server, asked: GenerationRequest, prompts: list[PreparedPrompt], num_beams: int
) -> None:
    """Refuse many prompts that have too many tokens together; each beam has a copy of its own."""
    limit = server.config.max_waiting_tokens
    total = num_beams * sum(prompt.num_tokens for prompt in prompts)
    if len(prompts) * num_beams > 1 and total > limit:
        copies = f" of {num_beams} beams" if num_beams > 1 else ""
        message = f"the prompts{copies} have {total} tokens together; the limit is {limit}"
        error = invalid(f"{message}: send fewer at once", "prompt", TOO_LONG)
        raise error if len(prompts) > 1 else asked.named(error, 0)


def _warnings(asked: GenerationRequest, shape: CheckedShape) -> list[str]:
    """Return the parts of a shape that are not enforced, in the dialect's names."""
    warnings = []
    for place, what in shape.warnings:
        if place.startswith(TOOL_FIELDS):
            warnings.append(asked.named(invalid(f"{place}: {what}", place), 0).message)
            continue
        param = f"structured_outputs.{place}"
        warnings.append(asked.named(invalid(f"{param}: {what}", param), 0).message)
    return warnings


async def _checked_shape(
    server: Server, asked: GenerationRequest, prompts: list[PreparedPrompt], owner: str
) -> CheckedShape:
    """Return the grammar of the answers' shape; raise ApiError for a shape that is wrong."""
    shape = asked.shape
    if shape is None and asked.answer_job is None:
        return NO_SHAPE
    job: ShapeJob | AnswerJob
    key: Key
    if asked.answer_job is not None:
        ends = [server.llm.model.end_of(each.ids) for each in prompts]
        job = asked.answer_job(ends[0])
        for index, end in enumerate(ends):
            if asked.answer_job(end) != job:
                what = "it continues inside of reasoning, or behind it, and the first one does not"
                raise asked.named(invalid(f"prompt: {what}; send it alone", "prompt"), index)
        key = msgspec.msgpack.encode(job)
    else:
        assert shape is not None
        job, key = job_of(shape, server.llm.facts.vocabulary), shape
    checked = server.checked_shapes.get(key)
    if checked is None:
        try:
            checked = await server.prompt_pool.check_shape(job, owner)
        except ApiError as error:
            raise asked.named(error, 0) from None
        server.checked_shapes.put(key, checked)
    if checked.what and checked.field in TOOL_FIELDS:
        param = f"{checked.field}{checked.path}"
        raise asked.named(invalid(f"{param}: {checked.what}", param), 0)
    if checked.what:
        wrong = shape_error(checked)
        raise asked.named(invalid(str(wrong), wrong.param, wrong.code), 0)
    return checked


def _sampling(
    server: Server,
    asked: GenerationRequest,
    prompts: list[PreparedPrompt],
    shape: CheckedShape,
) -> SamplingParams:
    """Return what was asked for, with the model's defaults and the limit of the answers."""
    values: dict[str, Any] = {}
    for name in _FROM_MODEL:
        values[name] = getattr(server.llm.model.defaults, name)
    values.update(asked.sampling)
    if asked.may_lack_budget and not server.llm.model.can_limit_thinking:
        values.pop("thinking_token_budget", None)
    words: list[Sequence[int]] = [*prompts[0].bad_words_token_ids]
    if asked.word_biases:
        values["logit_bias"] = with_words(values.get("logit_bias", {}), words, asked.word_biases)
        words = []
    if asked.labels:
        groups = label_tokens(server.llm.model.tokenizer, asked.labels, words)
        values["logprob_token_ids"] = [*dict.fromkeys(chain.from_iterable(groups.values()))]
        words = []
    if asked.bans_end:
        words += [(token,) for token in server.llm.model.end_ids]
    if "logit_bias" in values:
        check_biases(values["logit_bias"], server.llm.model.facts.vocabulary)
    if words:
        values["bad_words_token_ids"] = distinct(words)
    if shape.grammar:
        values.update(structured_outputs=asked.shape, grammar=shape.grammar)
    values["max_tokens"] = _max_tokens(server, asked, prompts)
    values["output_kind"] = RequestOutputKind.FINAL_ONLY
    if asked.is_stream:
        values["output_kind"] = RequestOutputKind.DELTA
    sampling = SamplingParams(**values)
    return with_breaker_tokens(server.llm.model, sampling, prompts[0].breaker_ids)


def _check_room(server: Server, asked: GenerationRequest, prompts: list[PreparedPrompt]) -> None:
    """Refuse an answer that was asked to be longer than what its prompt leaves of the context."""
    facts, wanted = server.llm.model.facts, asked.max_tokens
    if wanted is None:
        return
    for index, prompt in enumerate(prompts):
        num_prompt = prompt.num_tokens
        room = facts.longest_tokens - num_prompt
        if 0 < room < wanted:  # a prompt that leaves nothing is refused as such
            where = f"the model's context has {facts.max_model_len}"
            if facts.longest_tokens < facts.max_model_len:
                where = f"the KV cache holds {facts.longest_tokens}"
            error = invalid(
                f"max_tokens={wanted} and a prompt of {num_prompt} tokens make "
                f"{num_prompt + wanted}; {where}: lower max_tokens to {room} or less, or leave "
                "it out",
                "max_tokens",
                TOO_LONG,
            )
            raise asked.named(error, index)


def _max_tokens(server: Server, asked: GenerationRequest, prompts: list[PreparedPrompt]) -> int:
    """Return the limit: the least of what is wanted, what is free and what the server allows.

    A prompt that leaves nothing free is refused later, by the check of all bounds.
    """
    facts, limit = server.llm.model.facts, server.config.max_output_tokens
    least = asked.sampling.get("min_tokens", 0)
    room = facts.longest_tokens
    for prompt in prompts:
        room = min(room, facts.longest_tokens - prompt.num_tokens)
    wanted = asked.max_tokens
    if wanted is None:
        recommended = facts.generation.max_new_tokens or NO_LIMIT
        wanted = asked.default_max_tokens or max(recommended, least)
    most = min(wanted, room) if room > 0 else wanted
    if limit is not None:
        most = min(most, limit)
    if least > most:
        which = f"the {most} that this server gives"
        if most == wanted:
            which = f"max_tokens={wanted}"
        elif most == room:
            which = f"the {room} tokens that the context leaves"
        raise RequestError(f"min_tokens={least} is more than {which}", param="min_tokens")
    return most
