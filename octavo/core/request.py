"""The messages between the front end and the core: requests and commands in, events out."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, NamedTuple

from octavo.core.sampling_params import SamplingParams
from octavo.core.stats import RequestStats

# "refused": it could never run. "overloaded": the queue was full when it arrived. "impossible": no
# further token meets what it asks for. "repetition": the text repeats itself, as in vLLM.
FinishReason = Literal[
    "stop", "length", "repetition", "abort", "error", "refused", "overloaded", "impossible"
]
FAILURES = (
    "refused",
    "overloaded",
    "error",
    "impossible",
)  # finish reasons of requests without an answer


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """The positions that an encoder gives and every query reads; equal digests, equal content."""

    num_positions: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Request:
    """A sequence to be continued: everything needed to start it, or to start it again.

    Token ids are in 32-bit arrays, which take 4 bytes for each token instead of the 36 of a tuple
    of ints; they must not be written to. `emitted` holds the tokens that an earlier engine has
    emitted: they are known, count against `max_tokens`, and are not emitted again. `resumed` says
    that an earlier engine had admitted the request, so a full queue must not reject it.
    """

    request_id: str
    prompt: array[int]
    sampling: SamplingParams
    arrival: float  # seconds on the engine's clock
    emitted: array[int] = field(default_factory=partial(array, "i"))
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0  # the lower goes first; only the priority policy reads it
    lora: str | None = None
    cache_scope: str = ""  # prefixes are shared only within one scope
    resumed: bool = False
    parent_id: str | None = None  # a fork of that request: it shares KV while the tokens are equal
    salts: tuple[tuple[int, bytes], ...] = ()  # (position, digest), in the order of positions
    encoder: EncoderInput | None = None
    holds: tuple[str, ...] = ()  # reasons of stats.OUTSIDE
    owner: str = ""  # whose request it is; owners share the engine (fair/share.py)
    weight: float = 1.0  # of its owner: twice as much is twice the share
    is_background: bool = False  # it may wait for all requests that are not
    # What the answer may follow: drafts are taken from it, and no token depends on it.
    prediction: array[int] = field(default_factory=partial(array, "i"))
    # Of a sampler that has one, behind `emitted` (`TokenEvent.sampler_state`); None: the first.
    sampler_state: float | None = None
    reports_prompt: bool = False  # there is an event for each chunk of its prompt

    @property
    def num_tokens(self) -> int:
        """The tokens that are kept of it while it waits, those of its prediction included."""
        return len(self.prompt) + len(self.emitted) + len(self.prediction)

    @property
    def max_total(self) -> int:
        """The length at which the sequence ends: where nothing is drawn, the end counts as one."""
        return len(self.prompt) + (self.sampling.max_tokens or 1)

    @property
    def reads_cache(self) -> bool:
        """False if it reports more than its last position: then no KV may come from the cache."""
        pooling = self.sampling.pooling
        is_of_end = pooling is None or pooling.kind == "last"
        return self.sampling.prompt_logprobs is None and is_of_end


@dataclass(frozen=True, slots=True)
class Abort:
    """A command to end a request in any state; unknown and finished ones are no error."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """A command to plan nothing more until Resume; steps in flight are still applied."""


@dataclass(frozen=True, slots=True)
class Resume:
    """A command to plan again after Pause."""


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """A command to share no KV computed before now, for instance after a change of weights."""


Event = Request | Abort | Pause | Resume | ResetPrefixCache


@dataclass(frozen=True, slots=True)
class Ready:
    """The news that a request need wait no longer for one of its `holds`; `error` fails it instead.

    It comes from whatever loads grammars or adapters beside the engine, not from the front end.
    """

    request_id: str
    reason: str
    error: str | None = None
    is_impossible: bool = False  # the error is of what the request asks for


class TokenEvent(NamedTuple):
    """An event of one request. `position` is the index of `tokens[0]` among its output tokens.

    Exactly one event of a request has a `finish_reason`, and it is the last.
    """

    request_id: str
    position: int
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_token: int | None = None  # the stop token id that ended it, unless it was an EOS
    message: str | None = None  # why it was refused or failed
    payload: object | None = None  # log-probabilities or hidden states, from the sampler
    # With the first token and with the finish, and with each chunk of a prompt that is reported.
    stats: RequestStats | None = None
    sampler_state: float | None = None  # behind the tokens, of a sampler that has one
