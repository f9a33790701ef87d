"""Where requests are opened and events come in: text on one side, tokens on the other.

A user's request becomes `n` sequences of the core, forks of the first. The desk makes them,
follows their events, and puts the outputs together. It neither steps an engine nor waits for one,
so the offline and the streaming interface share it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from octavo.api.continuation import Continuation
from octavo.api.outputs import RequestError, RequestOutput
from octavo.api.prompts import Input
from octavo.core.config import MAX_PRIORITY
from octavo.core.request import FAILURES, Abort, Request, TokenEvent
from octavo.core.sampling_params import (
    MAX_BAD_WORD_VARIANTS,
    NO_LIMIT,
    RequestOutputKind,
    SamplingParams,
)
from octavo.core.stats import RequestStats
from octavo.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Options:
    """What a request may ask for besides its sampling."""

    priority: int = 0
    lora: str | None = None
    cache_scope: str = ""

    def __post_init__(self) -> None:
        if isinstance(self.priority, bool) or not isinstance(self.priority, int):
            raise RequestError(f"priority={self.priority!r} must be a whole number")
        if abs(self.priority) > MAX_PRIORITY:
            raise RequestError(f"priority={self.priority} must be within ±{MAX_PRIORITY}")
        for name in ("lora", "cache_scope"):
            value = getattr(self, name)
            if not isinstance(value, str) and not (name == "lora" and value is None):
                raise RequestError(f"{name}={value!r} must be a string")


@dataclass(frozen=True, slots=True)
class Model:
    """What the front end knows of the model."""

    tokenizer: Tokenizer
    vocabulary: int  # rows of the head; ids beyond it do not exist
    max_model_len: int
    longest_tokens: int  # of one sequence: max_model_len, or fewer if the KV cache is smaller
    end_ids: tuple[int, ...]
    max_logprobs: int
    processors: tuple[str, ...] = ()  # logits processors that the engine was started with


@dataclass(slots=True)
class _Entry:
    """One open request."""

    output: RequestOutput
    kind: RequestOutputKind
    streams: dict[str, Continuation]
    has_told_of_prompt: bool = False  # as a delta, which repeats nothing

    @property
    def is_done(self) -> bool:
        return all(stream.whole.finish_reason is not None for stream in self.streams.values())


PLAIN = Options()


class RequestTable:
    """All open requests of one front end."""

    def __init__(self, model: Model, seed: int) -> None:
        self.model = model
        self._seed = seed  # what unseeded requests draw theirs from
        self._num_opened = 0
        self._entries: dict[str, _Entry] = {}
        # By the core's request id: whose it is, as long as it has not ended.
        self._streams: dict[str, tuple[_Entry, Continuation]] = {}
        # Ended here, by a stop string; the core's own account of them is still to come.
        self._unaccounted: dict[str, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def open(
        self,
        request_id: str,
        prompt: Input,
        sampling: SamplingParams,
        arrival: float,
        options: Options = PLAIN,
        is_trusted: bool = False,  # ours: not bound by max_logprobs
    ) -> list[Request]:
        """Begin a request: what is to be handed to the core, in this order."""
        if request_id in self._entries:
            raise RequestError(f"request id {request_id!r} is in use")
        if not isinstance(sampling, SamplingParams):
            raise RequestError(
                f"sampling_params must be SamplingParams, not {type(sampling).__name__}; "
                "for example SamplingParams(temperature=0.0)"
            )
        sampling = self._settle(self._fit(sampling, len(prompt.token_ids)), is_trusted)
        output = RequestOutput(request_id, prompt.text, list(prompt.token_ids), [])
        entry = _Entry(output, sampling.output_kind, {})
        self._entries[request_id] = entry
        requests: list[Request] = []
        for index in range(sampling.n):
            # Numbered, so that late news of an earlier request of that id are nobody's.
            name = f"{request_id}#{self._num_opened}.{index}"
            stream = Continuation(index, prompt.token_ids, sampling, self.model.tokenizer)
            entry.streams[name] = stream
            self._streams[name] = entry, stream
            own = sampling  # making one checks all of it, which takes a while
            if sampling.n > 1:
                assert sampling.seed is not None
                own = replace(
                    sampling,
                    n=1,
                    seed=(sampling.seed + index + 2**63) % 2**64 - 2**63,
                    # The first tells of the prompt; the others need not compute it for that.
                    prompt_logprobs=None if index else sampling.prompt_logprobs,
                    pooling=None if index else sampling.pooling,
                )
            requests.append(
                Request(
                    request_id=name,
                    prompt=prompt.token_ids,  # one for all: nobody writes to it
                    sampling=own,
                    arrival=arrival,
                    eos_token_ids=self.model.end_ids,
                    priority=options.priority,
                    lora=options.lora,
                    cache_scope=options.cache_scope,
                    parent_id=requests[0].request_id if index else None,
                )
            )
        return requests

    def _fit(self, sampling: SamplingParams, num_prompt: int) -> SamplingParams:
        """The sampling with as many tokens as there is room for, if it sets no limit."""
        model = self.model
        room = model.longest_tokens - num_prompt
        is_cache_small = model.longest_tokens < model.max_model_len
        if sampling.is_about_prompt and not is_cache_small:
            room += 1  # nobody asks for an answer
        if room < 1:
            limit = f"max_model_len={model.max_model_len}"
            if is_cache_small:
                limit = f"the KV cache, which holds {model.longest_tokens} tokens,"
            raise RequestError(
                f"the prompt has {num_prompt} tokens; {limit} leaves no room for "
                f"{'all of it' if sampling.is_about_prompt else 'an answer'}: shorten it"
            )
        if sampling.max_tokens == NO_LIMIT:
            return replace(sampling, max_tokens=room)
        total = min(num_prompt + sampling.max_tokens, model.max_model_len)
        if total > model.longest_tokens:
            raise RequestError(
                f"{num_prompt} prompt tokens and max_tokens={sampling.max_tokens} make {total}; "
                f"the KV cache holds {model.longest_tokens}: lower max_tokens (None takes what "
                "there is), or give the cache more memory"
            )
        return sampling

    def _settle(self, sampling: SamplingParams, is_trusted: bool) -> SamplingParams:
        """What only the front end can fill in or check: the seed, bad words, ids, log-probs."""
        sampling.check_vocabulary(self.model.vocabulary)
        for entry in sampling.logits_processors:
            if isinstance(entry, str) and entry not in self.model.processors:
                raise RequestError(
                    f"logits processor {entry!r} is unknown to this engine; it was started with: "
                    f"{', '.join(self.model.processors) or 'none'}"
                )
        most = -1 if is_trusted else self.model.max_logprobs
        for name in ("logprobs", "prompt_logprobs"):
            asked = getattr(sampling, name)
            if asked is not None and most != -1 and (asked == -1 or asked > most):
                raise RequestError(
                    f"{name}={asked} is more than max_logprobs={most} of this engine allows"
                )
        self._num_opened += 1
        seed = sampling.seed
        if seed is None:
            mixed = self._seed * 0x9E3779B97F4A7C15 + self._num_opened * 0xD1B54A32D192ED03
            seed = mixed % 2**63
        words = {
            tuple(self.model.tokenizer.encode(spelling, add_special_tokens=False)): None
            for word in sampling.bad_words
            for spelling in (word, " " + word.lstrip())
        }
        words.pop((), None)
        given = sampling.bad_words_token_ids
        if len(words) + len(given) > MAX_BAD_WORD_VARIANTS:
            raise RequestError(
                f"{len(sampling.bad_words)} bad_words come to {len(words)} spellings, with and "
                f"without a space before them, and bad_words_token_ids has {len(given)}; at most "
                f"{MAX_BAD_WORD_VARIANTS} work together"
            )
        return replace(sampling, seed=seed, bad_words_token_ids=(*given, *words))

    def receive(self, event: TokenEvent) -> tuple[RequestOutput | None, list[Abort]]:
        """Follow one event: what the user is to see, if anything, and what the core must drop.

        A continuation that was turned away or failed ends as an "error" with the message, and so
        does one whose text cannot be made: whatever is wrong with it is wrong with it alone.
        """
        found = self._streams.get(event.request_id)
        if found is None:  # it ended here, by a stop string, before the core knew
            if event.finish_reason is not None:  # other tokens may have been on their way
                self._account(self._unaccounted.pop(event.request_id, None), event.stats)
            return None, []
        entry, stream = found
        must_stop = self._push(stream, event)
        whole = stream.whole
        if event.stats is not None and whole.index == 0:
            self._account(entry, event.stats)
        done = False
        if whole.finish_reason is not None:
            del self._streams[event.request_id]
            if must_stop and whole.index == 0:
                self._unaccounted[event.request_id] = entry
                _account_so_far(entry.output, len(whole.token_ids))
            done = entry.is_done
        if done:
            del self._entries[entry.output.request_id]
        aborts = [Abort(event.request_id)] if must_stop else []
        return self._output(entry, stream, event, done), aborts

    def _push(self, stream: Continuation, event: TokenEvent) -> bool:
        """Whether the core is to be told that the stream has ended."""
        if event.finish_reason in FAILURES:
            stream.fail(event.message or str(event.finish_reason))
            return False
        try:
            return stream.push(event)
        except Exception as error:  # others' streams have nothing to do with it
            log.exception("the text of %s failed", event.request_id)
            stream.fail(f"its text could not be made: {type(error).__name__}: {error}")
            return event.finish_reason is None

    def _account(self, entry: _Entry | None, stats: RequestStats | None) -> None:
        """The first continuation's account speaks for the request, whichever ends first."""
        if entry is not None and stats is not None:
            entry.output.metrics = stats
            entry.output.num_cached_tokens = stats.num_cached_tokens

    def owner(self, name: str) -> str | None:
        """The open request that one of the core's belongs to."""
        found = self._streams.get(name)
        return None if found is None else found[0].output.request_id

    def names(self, request_id: str) -> list[str]:
        """What the core calls a request's continuations that have not ended."""
        entry = self._entries.get(request_id)
        return [] if entry is None else [name for name in entry.streams if name in self._streams]

    def close(self, request_id: str) -> list[Abort]:
        """Forget a request: what the core must drop."""
        entry = self._entries.pop(request_id, None)
        names = [] if entry is None else entry.streams
        return [Abort(name) for name in names if self._streams.pop(name, None) is not None]

    def _output(
        self, entry: _Entry, stream: Continuation, event: TokenEvent, done: bool
    ) -> RequestOutput | None:
        """What is to be seen after an event of one of the streams."""
        has_failed = stream.whole.error is not None
        if not (event.tokens or stream.whole.finish_reason):  # it told of the prompt only
            return None
        if entry.kind is RequestOutputKind.FINAL_ONLY and not (done or has_failed):
            return None
        first = next(iter(entry.streams.values()))
        output = entry.output
        told = RequestOutput(  # once a token: dataclasses.replace takes several times as long
            output.request_id,
            output.prompt,
            output.prompt_token_ids,
            output.outputs,
            done,
            first.prompt_logprobs,
            first.hidden_state,
            output.num_cached_tokens,
            output.metrics,
        )
        if entry.kind is RequestOutputKind.DELTA:
            told.outputs = [stream.take()]
            if stream is not first or entry.has_told_of_prompt:
                told.prompt_logprobs = told.hidden_state = None
            entry.has_told_of_prompt |= stream is first
        elif done:
            told.outputs = [stream.everything() for stream in entry.streams.values()]
        else:
            told.outputs = [stream.snapshot() for stream in entry.streams.values()]
        if done:
            entry.output = told  # the first continuation's account may still come
        return told


def _account_so_far(output: RequestOutput, num_tokens: int) -> None:
    """What the first token's account lacks when a stop string ends the text.

    It is put right once the core's own account comes, for those who wait for it.
    """
    if output.metrics is not None:
        output.metrics = replace(
            output.metrics, num_output_tokens=num_tokens, num_decode_steps=num_tokens - 1
        )


class FailedRequestError(RequestError):
    """The engine turned a request away, or it failed there."""

    def __init__(self, request_id: str, reason: str, message: str) -> None:
        super().__init__(f"request {request_id}: {message}")
        self.request_id = request_id
        self.reason = reason  # "refused", "overloaded" or "error"
