"""Where requests are opened and events come in: text on one side, tokens on the other.

A user's request becomes `n` sequences of the core, forks of the first. The desk makes them,
follows their events, and puts the outputs together. It neither steps an engine nor waits for one,
so the offline and the streaming interface share it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, replace

from octavo.core.request import Abort, Request, TokenEvent
from octavo.core.sampling_params import MAX_BAD_WORD_VARIANTS, RequestOutputKind, SamplingParams
from octavo.frontend.inputs import Input
from octavo.frontend.outputs import RequestError, RequestOutput
from octavo.frontend.stream import Stream
from octavo.frontend.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Options:
    """What a request may ask for besides its sampling."""

    priority: int = 0
    lora: str | None = None
    cache_scope: str = ""


@dataclass(frozen=True, slots=True)
class Model:
    """What the front end knows of the model."""

    tokenizer: Tokenizer
    vocabulary: int  # rows of the head; ids beyond it do not exist
    max_model_len: int
    end_ids: tuple[int, ...]
    max_logprobs: int


@dataclass(slots=True)
class _Entry:
    """One open request."""

    output: RequestOutput
    kind: RequestOutputKind
    streams: dict[str, Stream]

    @property
    def is_done(self) -> bool:
        return all(stream.whole.finished() for stream in self.streams.values())


PLAIN = Options()


class Desk:
    """All open requests of one front end."""

    def __init__(self, model: Model, seed: int) -> None:
        self.model = model
        self._seed = seed  # what unseeded requests draw theirs from
        self._num_opened = 0
        self._entries: dict[str, _Entry] = {}
        self._owners: dict[str, str] = {}  # the core's request id → ours

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
        sampling = self._settle(sampling, is_trusted)
        if len(prompt.token_ids) >= self.model.max_model_len:
            raise RequestError(
                f"the prompt has {len(prompt.token_ids)} tokens; max_model_len="
                f"{self.model.max_model_len} leaves no room for an answer: shorten it"
            )
        output = RequestOutput(request_id, prompt.text, list(prompt.token_ids), [])
        entry = _Entry(output, sampling.output_kind, {})
        self._entries[request_id] = entry
        requests: list[Request] = []
        for index in range(sampling.n):
            # Numbered, so that late news of an earlier request of that id are nobody's.
            name = f"{request_id}#{self._num_opened}.{index}"
            stream = Stream(index, prompt.token_ids, sampling, self.model.tokenizer)
            entry.streams[name] = stream
            self._owners[name] = request_id
            # The first tells of the prompt; the others need not compute it again for that.
            about_prompt = None if index else sampling.prompt_logprobs
            pooling = None if index else sampling.pooling
            assert sampling.seed is not None
            seed = (sampling.seed + index + 2**63) % 2**64 - 2**63
            requests.append(
                Request(
                    request_id=name,
                    prompt=array("i", prompt.token_ids),
                    sampling=replace(
                        sampling, n=1, seed=seed, prompt_logprobs=about_prompt, pooling=pooling
                    ),
                    arrival=arrival,
                    eos_token_ids=self.model.end_ids,
                    priority=options.priority,
                    lora=options.lora,
                    cache_scope=options.cache_scope,
                    parent_id=requests[0].request_id if index else None,
                )
            )
        return requests

    def _settle(self, sampling: SamplingParams, is_trusted: bool) -> SamplingParams:
        """What only the front end can fill in or check: the seed, bad words, ids, log-probs."""
        sampling.check_vocabulary(self.model.vocabulary)
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
        if len(words) + len(sampling.bad_words_token_ids) > MAX_BAD_WORD_VARIANTS:
            raise RequestError(
                f"bad_words come to {len(words)} spellings; at most {MAX_BAD_WORD_VARIANTS} work"
            )
        ids = (*sampling.bad_words_token_ids, *words)
        return replace(sampling, seed=seed, bad_words_token_ids=ids)

    def receive(self, event: TokenEvent) -> tuple[RequestOutput | None, list[Abort]]:
        """Follow one event: what the user is to see, if anything, and what the core must drop.

        Raises RequestError, and forgets the request, if it was turned away or failed.
        """
        request_id = self._owners.get(event.request_id)
        if request_id is None:  # it ended here, by a stop string, before the core knew
            return None, []
        entry = self._entries[request_id]
        stream = entry.streams[event.request_id]
        if event.finish_reason in ("refused", "overloaded", "error"):
            raise FailedRequestError(request_id, event, self.close(request_id))
        must_stop = stream.push(event)
        if event.stats is not None and entry.output.metrics is None:
            entry.output.metrics = event.stats
            entry.output.num_cached_tokens = event.stats.num_cached_tokens
        if stream.whole.finished():
            del self._owners[event.request_id]
        done = entry.is_done
        if done:
            del self._entries[request_id]
        aborts = [Abort(event.request_id)] if must_stop else []
        return self._output(entry, done), aborts

    def names(self, request_id: str) -> list[str]:
        """What the core calls a request's continuations that have not ended."""
        entry = self._entries.get(request_id)
        return [] if entry is None else [name for name in entry.streams if name in self._owners]

    def close(self, request_id: str) -> list[Abort]:
        """Forget a request: what the core must drop."""
        entry = self._entries.pop(request_id, None)
        names = [] if entry is None else entry.streams
        return [Abort(name) for name in names if self._owners.pop(name, None) is not None]

    def _output(self, entry: _Entry, done: bool) -> RequestOutput | None:
        if entry.kind is RequestOutputKind.FINAL_ONLY and not done:
            return None
        streams = list(entry.streams.values())
        if entry.kind is RequestOutputKind.DELTA:
            outputs = [stream.take() for stream in streams]
        elif done:
            outputs = [stream.whole for stream in streams]
        else:
            outputs = [stream.snapshot() for stream in streams]
        return replace(
            entry.output,
            outputs=outputs,
            finished=done,
            prompt_logprobs=streams[0].prompt_logprobs,
            hidden_state=streams[0].hidden_state,
        )


class FailedRequestError(RequestError):
    """The engine turned a request away, or it failed there."""

    def __init__(self, request_id: str, event: TokenEvent, aborts: list[Abort]) -> None:
        super().__init__(f"request {request_id}: {event.message}")
        self.request_id = request_id
        self.reason = event.finish_reason
        self.aborts = aborts  # its other continuations, to be dropped
