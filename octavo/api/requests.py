"""Every bound on a request, and the table of open requests: text on one side, tokens on the other.

A user's request becomes `n` sequences of the core, forks of the first. The table makes them,
follows their events, and puts the outputs together, for LLM and AsyncLLM: it steps no engine.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from msgspec import Struct, structs

from octavo.api.breakers import with_breakers
from octavo.api.continuation import Continuation, Meter
from octavo.api.outputs import RequestError, RequestOutput
from octavo.api.pooling.served import check_generates
from octavo.api.prediction import followed_part, predicted_tokens
from octavo.api.prompts import Input, Prompt, read_prompt
from octavo.api.reading import Reading
from octavo.api.shapes import shape_grammar
from octavo.api.text_model import TextModel
from octavo.core.config import MAX_PRIORITY
from octavo.core.pooling import Pooling
from octavo.core.request import FAILURES, Abort, Request, TokenEvent
from octavo.core.sampling_params import (
    ALL,
    MAX_BAD_WORD_VARIANTS,
    NO_LIMIT,
    RequestOutputKind,
    SamplingParams,
)
from octavo.core.sampling_params import TOO_LONG as TOO_LONG
from octavo.wire.limits import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from octavo.adapter_copies.copies import AdapterCopies

log = logging.getLogger(__name__)

TOO_LARGE = "response_too_large"
VECTOR_BYTES = MAX_FRAME_BYTES - (64 << 10)  # of one prompt, in a message of the engine
_FIELDS = tuple(field.name for field in fields(SamplingParams))


class Options(Struct, frozen=True):
    """A request's settings besides its sampling."""

    priority: int = 0
    lora: str | None = None
    cache_scope: str = ""
    owner: str = ""  # whose request it is; owners share the engine
    weight: float = 1.0  # of the owner
    is_background: bool = False  # it may wait for all that are not
    reports_prompt: bool = False  # a stream has an output for each chunk of the prompt
    is_beam: bool = False  # a step of beam search: max_logprobs does not bind it

    def __post_init__(self) -> None:
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise RequestError(
                f"priority={self.priority!r} must be a whole number", param="priority"
            )
        if abs(self.priority) > MAX_PRIORITY:
            raise RequestError(
                f"priority={self.priority} must be within ±{MAX_PRIORITY}", param="priority"
            )
        for name in ("lora", "cache_scope"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "lora" and value is None):
                raise RequestError(f"{name}={value!r} must be a string", param=name)


PLAIN = Options()
_NO_TOKENS = array("i")


class CheckedRequest(Struct, frozen=True):
    """A prompt and its parameters, within every bound of the model and the engine."""

    prompt: Input
    sampling: SamplingParams
    options: Options = PLAIN
    reading: Reading | None = None  # of each continuation; None: it is text alone
    meter: Meter | None = None  # counts the tokens of all continuations as they come
    prediction: array[int] | None = None  # tokens that the answer may follow


class _Entry(Struct):
    """One open request and its continuations."""

    output: RequestOutput
    kind: RequestOutputKind
    streams: dict[str, Continuation]
    has_sent_prompt: bool = False  # as a delta, which repeats nothing

    @property
    def is_done(self) -> bool:
        return all(stream.whole.finish_reason is not None for stream in self.streams.values())

    @property
    def progress(self) -> RequestOutput | None:
        """The output after a chunk of the prompt, which only a stream has."""
        return replace(self.output) if self.kind is RequestOutputKind.DELTA else None


def check_request(
    model: TextModel,
    prompt: Prompt | Input,
    sampling: SamplingParams,
    options: Options = PLAIN,
    output_kind: RequestOutputKind | None = None,  # instead of the sampling's own
    reading: Reading | None = None,
    prediction: array[int] | None = None,  # instead of the sampling's own, which is not tokenised
) -> CheckedRequest:
    """Check a request against all bounds; raise RequestError if it could not be served."""
    if not isinstance(sampling, SamplingParams):
        raise RequestError(
            f"sampling_params must be SamplingParams, not {type(sampling).__name__}; "
            "for example SamplingParams(temperature=0.0)",
            param="sampling_params",
        )
    _check_tasks(model, sampling)
    if not isinstance(prompt, Input):
        prompt = read_prompt(prompt, model.tokenizer, model.facts.vocabulary)
    sampling = with_breakers(model, sampling)
    changes: dict[str, Any] = {}
    max_tokens = check_room(model, sampling, len(prompt.token_ids))
    if sampling.pooling is not None and sampling.pooling.kind == "all":
        _check_vectors(model, sampling.pooling, len(prompt.token_ids))
    if max_tokens != sampling.max_tokens:
        changes["max_tokens"] = max_tokens
    if (
        sampling.stop_token_ids
        or sampling.logit_bias
        or sampling.allowed_token_ids
        or sampling.bad_words_token_ids
        or sampling.logprob_token_ids
    ):
        sampling.check_vocabulary(model.facts.vocabulary)
    if sampling.logits_processors:
        _check_processors(model, sampling)
    if sampling.extra_args and not model.takes_extra_args:
        raise RequestError(
            "extra_args: this engine was started without --logits-processors, and nothing else "
            f"reads {', '.join(map(repr, sampling.arguments))}; leave them out",
            param="extra_args",
            code="unsupported_parameter",
        )
    if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
        _check_logprobs(model, sampling, options)
    if sampling.bad_words:
        changes["bad_words_token_ids"] = _bad_words(model, sampling)
    if sampling.structured_outputs is not None and not sampling.grammar:
        changes["grammar"] = shape_grammar(model, sampling.structured_outputs)
    if sampling.thinking_token_budget is not None:
        changes["thinking_marks"] = model.thinking_marks(prompt.token_ids)
    if output_kind is not None:
        changes["output_kind"] = output_kind
    if changes:
        sampling = _changed(sampling, **changes)
        sampling.check_thinking()
    if prediction is None and sampling.prediction:
        prediction = predicted_tokens(model, sampling.prediction)
    if prediction:
        prediction = followed_part(model, prediction, sampling.max_tokens or 0)
    if not prediction or not sampling.speculation:
        return CheckedRequest(prompt, sampling, options, reading)
    return CheckedRequest(prompt, sampling, options, reading, prediction=prediction)


def _check_tasks(model: TextModel, sampling: SamplingParams) -> None:
    """Refuse what the model cannot do: text from an encoder, scores without a classifier."""
    pooling, facts = sampling.pooling, model.facts.pooling
    if not sampling.is_about_prompt:
        check_generates(model.facts)
    has = {"": True, "embed": facts.embed_head == "embed", "classify": bool(facts.labels)}
    if pooling is not None and not has[pooling.head]:
        raise RequestError(
            f"{model.facts.name} has no layers for {pooling.head!r} behind its pooling; it "
            f"serves: {', '.join(facts.tasks)}",
            param="model",
        )


def check_room(model: TextModel, sampling: SamplingParams, num_prompt: int) -> int:
    """Return the limit of the answer: what is free in the context if the sampling sets none.

    Raise RequestError for a prompt that leaves no room.
    """
    facts = model.facts
    room = facts.longest_tokens - num_prompt
    is_cache_small = facts.longest_tokens < facts.max_model_len
    if sampling.is_about_prompt and not is_cache_small:
        room += 1  # no token follows, which would need a position
    if room < 1:
        limit = f"max_model_len={facts.max_model_len}"
        if is_cache_small:
            limit = f"the KV cache, which holds {facts.longest_tokens} tokens,"
        raise RequestError(
            f"the prompt has {num_prompt} tokens; {limit} leaves no room for "
            f"{'all of it' if sampling.is_about_prompt else 'an answer'}: shorten it",
            param="prompt",
            code=TOO_LONG,
            room=(num_prompt, facts.longest_tokens),
        )
    if sampling.max_tokens == NO_LIMIT:
        return room
    total = min(num_prompt + sampling.max_tokens, facts.max_model_len)
    if total > facts.longest_tokens:
        raise RequestError(
            f"{num_prompt} prompt tokens and max_tokens={sampling.max_tokens} make {total}; "
            f"the KV cache holds {facts.longest_tokens}: lower max_tokens (None takes what "
            "there is), or give the cache more memory",
            param="max_tokens",
            code=TOO_LONG,
        )
    return sampling.max_tokens


def _check_vectors(model: TextModel, pooling: Pooling, num_prompt: int) -> None:
    """Refuse a prompt whose tokens have more vectors than the engine can send."""
    width = model.facts.pooling.width_behind(pooling.head)
    needed = num_prompt * width * 4
    if needed > VECTOR_BYTES:
        raise RequestError(
            f"the prompt has {num_prompt} tokens, and a vector of {width} numbers for each takes "
            f"{needed} bytes; {VECTOR_BYTES} are possible for one prompt: shorten it to "
            f"{VECTOR_BYTES // (4 * width)} tokens, for example with truncate_prompt_tokens, or "
            "send it in parts",
            param="prompt",
            code=TOO_LARGE,
        )


def _check_processors(model: TextModel, sampling: SamplingParams) -> None:
    for entry in sampling.logits_processors:
        if isinstance(entry, str) and entry not in model.processors:
            raise RequestError(
                f"logits processor {entry!r} is unknown to this engine; it was started with: "
                f"{', '.join(model.processors) or 'none'}",
                param="logits_processors",
            )


def _check_logprobs(model: TextModel, sampling: SamplingParams, options: Options) -> None:
    if options.is_beam:
        return
    vocabulary = model.facts.vocabulary
    most = vocabulary if model.max_logprobs == ALL else model.max_logprobs
    for name in ("logprobs", "prompt_logprobs"):
        asked = getattr(sampling, name)
        if name == "logprobs" and sampling.logprob_token_ids:
            continue  # bounded by themselves
        if asked is None or (vocabulary if asked == ALL else asked) <= most:
            continue
        means = f", the whole vocabulary of {vocabulary} tokens," if asked == ALL else ""
        raise RequestError(
            f"{name}={asked}{means} is more than max_logprobs={model.max_logprobs} of this engine "
            "allows; ask for fewer, or start it with a higher max_logprobs",
            param=name,
        )


def _bad_words(model: TextModel, sampling: SamplingParams) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of all bad words, behind those that are given as token ids."""
    given = sampling.bad_words_token_ids
    variants = bad_word_variants(sampling.bad_words, len(given))
    encode = model.tokenizer.encode
    return (*given, *distinct(encode(each, add_special_tokens=False) for each in variants))


def bad_word_variants(words: Sequence[str], num_given: int = 0) -> list[str]:
    """Return each word with and without a space before it; refuse too many.

    `num_given` words come beside these as token ids. The number is checked here because
    tokenising the variants takes long.
    """
    variants = [each for word in words for each in (word, " " + word.lstrip())]
    variants = list(dict.fromkeys(variants))
    if len(variants) + num_given > MAX_BAD_WORD_VARIANTS:
        raise RequestError(
            f"{len(words)} bad_words have {len(variants)} spellings, with and without a space "
            f"before them, and bad_words_token_ids has {num_given}; at most "
            f"{MAX_BAD_WORD_VARIANTS} work together",
            param="bad_words",
        )
    return variants


def distinct(words: Iterable[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return words, which are sequences of token ids, without empty and repeated ones."""
    return tuple(dict.fromkeys(tuple(word) for word in words if word))


def _changed(sampling: SamplingParams, **changes: Any) -> SamplingParams:
    """Copy checked parameters; `dataclasses.replace` would check all of them again."""
    copy = object.__new__(SamplingParams)
    for name in _FIELDS:
        object.__setattr__(copy, name, getattr(sampling, name))
    for name, value in changes.items():
        object.__setattr__(copy, name, value)
    return copy


class RequestTable:
    """The open requests of one front end."""

    def __init__(self, model: TextModel, copies: AdapterCopies | None = None) -> None:
        self._model = model
        self._copies = copies  # of adapters, whose paths messages name
        self._num_opened = 0
        self._entries: dict[str, _Entry] = {}
        # By the core's request id, until the continuation has ended.
        self._streams: dict[str, tuple[_Entry, Continuation]] = {}
        # Ended here, by a stop string; the core's own statistics are still to come.
        self._unaccounted: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def seeded(self, request: CheckedRequest, num_before: int = 0) -> CheckedRequest:
        """Return a request with the seed that it gets if `num_before` others are opened first."""
        if request.sampling.seed is not None:
            return request
        number = self._num_opened + num_before + 1
        mixed = self._model.seed * 0x9E3779B97F4A7C15 + number * 0xD1B54A32D192ED03
        return structs.replace(request, sampling=_changed(request.sampling, seed=mixed % 2**63))

    def open(self, request_id: str, request: CheckedRequest, arrival: float) -> list[Request]:
        """Begin a request; return what the core must be given, in this order.

        `arrival` is in seconds of `time.monotonic`, which all processes of a machine share.
        """
        assert request_id not in self._entries, f"request id {request_id!r} is in use"
        request = self.seeded(request)
        self._num_opened += 1
        prompt, options, sampling = request.prompt, request.options, request.sampling
        output = RequestOutput(request_id, prompt.text, prompt.token_ids, [])
        entry = _Entry(output, sampling.output_kind, {})
        self._entries[request_id] = entry
        requests: list[Request] = []
        for index in range(sampling.n):
            # Numbered, so that late events of an earlier request of that id match no entry.
            name = f"{request_id}#{self._num_opened}.{index}"
            stream = Continuation(
                index,
                prompt.token_ids,
                sampling,
                self._model.tokenizer,
                request.reading,
                request.meter,
            )
            entry.streams[name] = stream
            self._streams[name] = entry, stream
            requests.append(
                Request(
                    request_id=name,
                    prompt=prompt.token_ids,  # shared: it is never written to
                    sampling=sampling if sampling.n == 1 else _forked(sampling, index),
                    arrival=arrival,
                    eos_token_ids=self._model.end_ids,
                    priority=options.priority,
                    lora=options.lora,
                    cache_scope=options.cache_scope,
                    owner=options.owner,
                    weight=options.weight,
                    is_background=options.is_background,
                    reports_prompt=options.reports_prompt and not index,
                    parent_id=requests[0].request_id if index else None,
                    prediction=request.prediction or _NO_TOKENS,
                )
            )
        return requests

    def receive(self, event: TokenEvent) -> tuple[RequestOutput | None, list[Abort]]:
        """Follow one event; return the user's output, if any, and what the core must drop.

        A continuation that was rejected or failed ends as an "error" with the message. So does
        one whose text cannot be decoded: the failure concerns no other request.
        """
        found = self._streams.get(event.request_id)
        if found is None:  # it ended here, by a stop string, before it ended in the core
            if event.finish_reason is not None:  # tokens may have been in flight
                ended = self._unaccounted.pop(event.request_id, None)
                if ended is not None and event.stats is not None:
                    ended.output.metrics = event.stats
                    ended.output.num_cached_tokens = event.stats.num_cached_tokens
            return None, []
        entry, stream = found
        must_stop = False
        if event.finish_reason in FAILURES:
            message = event.message or str(event.finish_reason)
            stream.fail(message if self._copies is None else self._copies.as_given(message))
        else:
            try:
                must_stop = stream.push(event)
            except Exception as error:  # it concerns no other stream
                log.exception("the text of request %s could not be decoded", event.request_id)
                stream.fail(f"its text could not be decoded: {type(error).__name__}: {error}")
                must_stop = event.finish_reason is None
        stream.measure()
        whole = stream.whole
        if event.stats is not None:
            stream.count_predicted(event.stats)
            if whole.index == 0:
                entry.output.metrics = event.stats
                entry.output.num_cached_tokens = event.stats.num_cached_tokens
        done = False
        if whole.finish_reason is None:
            if entry.kind is RequestOutputKind.FINAL_ONLY:
                return None, []
        else:
            del self._streams[event.request_id]
            if must_stop and whole.index == 0:
                self._unaccounted[event.request_id] = entry
                entry.output.account_so_far(len(whole.token_ids))
            done = entry.is_done
        if done:
            del self._entries[entry.output.request_id]
        aborts = [Abort(event.request_id)] if must_stop else []
        return self._output(entry, stream, event, done), aborts

    def is_over(self, name: str) -> bool:
        """Return whether a continuation has ended; nothing of the core is expected for it then."""
        self._unaccounted.pop(name, None)
        return name not in self._streams

    def names(self, request_id: str) -> list[str]:
        """Return the core's ids of a request's continuations that have not ended."""
        entry = self._entries.get(request_id)
        return [] if entry is None else [name for name in entry.streams if name in self._streams]

    def close(self, request_id: str) -> list[Abort]:
        """Forget a request; return what the core must drop."""
        entry = self._entries.pop(request_id, None)
        names = [] if entry is None else entry.streams
        return [Abort(name) for name in names if self._streams.pop(name, None) is not None]

    def _output(
        self, entry: _Entry, stream: Continuation, event: TokenEvent, done: bool
    ) -> RequestOutput | None:
        """Return the user's output after an event of one of the streams, if there is one."""
        has_failed = stream.whole.error is not None
        if event.stats is not None and not (event.tokens or event.finish_reason):
            return entry.progress
        if not (event.tokens or stream.whole.finish_reason):  # it only had the prompt's part
            return None
        if entry.kind is RequestOutputKind.FINAL_ONLY and not (done or has_failed):
            return None
        first = next(iter(entry.streams.values()))
        output = entry.output
        result = RequestOutput(  # once a token: dataclasses.replace takes several times as long
            output.request_id,
            output.prompt,
            output.prompt_ids,
            output.outputs,
            done,
            first.prompt_logprobs,
            first.hidden_state,
            output.num_cached_tokens,
            output.metrics,
        )
        if entry.kind is RequestOutputKind.DELTA:
            result.outputs = [stream.take()]
            if stream is not first or entry.has_sent_prompt:
                result.prompt_logprobs = result.hidden_state = None
            entry.has_sent_prompt |= stream is first
        elif done:
            result.outputs = [stream.everything() for stream in entry.streams.values()]
        else:
            result.outputs = [stream.snapshot() for stream in entry.streams.values()]
        if done:
            entry.output = result  # the first continuation's statistics may still come
        return result


def _forked(sampling: SamplingParams, index: int) -> SamplingParams:
    """Return the parameters of one of several continuations."""
    assert sampling.seed is not None
    changes: dict[str, Any] = {"n": 1, "seed": (sampling.seed + index + 2**63) % 2**64 - 2**63}
    if index:  # the first reports on the prompt; the others need not compute it for that
        changes |= {"prompt_logprobs": None, "pooling": None}
    return _changed(sampling, **changes)


class FailedRequestError(RequestError):
    """A request that the engine rejected, or that failed in it."""

    def __init__(self, request_id: str, reason: str, message: str) -> None:
        super().__init__(f"request {request_id}: {message}")
        self.request_id = request_id
        self.reason = reason  # one of FAILURES
