"""What crosses between the front end and the core: requests and commands down, events up."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from octavo.core.sampling_params import SamplingParams
from octavo.core.stats import RequestStats

# "refused" could never run, whenever it came; "overloaded" came when the queue was full.
FinishReason = Literal["stop", "length", "abort", "error", "refused", "overloaded"]
FAILURES = ("refused", "overloaded", "error")  # finish reasons of requests without an answer


@dataclass(frozen=True, slots=True)
class Request:
    """A sequence to be continued. Its journal entry: enough to begin it, or to begin it again.

    Token ids are 32-bit arrays, four bytes a token instead of the 36 of a tuple of ints; nobody
    writes to them. `emitted` holds what an earlier engine already gave out: those tokens are
    known, count against `max_tokens`, and are not emitted again. `resumed` says that an earlier
    engine had taken the request in: a full queue does not turn it away, for it was promised.
    """

    request_id: str
    prompt: array[int]
    sampling: SamplingParams
    arrival: float  # seconds on the clock the engine is given
    emitted: array[int] = field(default_factory=lambda: array("i"))
    eos_token_ids: tuple[int, ...] = ()
    priority: int = 0  # the lower, the sooner; read under the priority policy alone
    lora: str | None = None
    cache_scope: str = ""  # prefixes are shared only inside one scope
    resumed: bool = False
    parent_id: str | None = None  # fork of that request: take its KV as far as the tokens agree

    @property
    def max_total(self) -> int:
        """Length at which the sequence has all its tokens."""
        return len(self.prompt) + self.sampling.max_tokens

    @property
    def reads_cache(self) -> bool:
        """Whether KV computed for others will do; not if more than its last position is told of."""
        return self.sampling.prompt_logprobs is None and self.sampling.pooling in (None, "last")


@dataclass(frozen=True, slots=True)
class Abort:
    """Forget a request, whatever it is doing; unknown and finished ones are no error."""

    request_id: str


@dataclass(frozen=True, slots=True)
class Pause:
    """Plan nothing more until Resume; what is in flight is still applied."""


@dataclass(frozen=True, slots=True)
class Resume:
    """Go on after Pause."""


@dataclass(frozen=True, slots=True)
class ResetPrefixCache:
    """Let no later sequence share KV computed before now (after a change of weights, say)."""


Event = Request | Abort | Pause | Resume | ResetPrefixCache


class TokenEvent(NamedTuple):
    """News of one request. `position` is the index of `tokens[0]` among its output tokens.

    Exactly one event of a request carries a `finish_reason`, and it is the last.
    """

    request_id: str
    position: int
    tokens: tuple[int, ...]
    finish_reason: FinishReason | None = None
    stop_token: int | None = None  # the stop token id that ended it, unless it was an EOS
    message: str | None = None  # why it was refused or failed
    payload: object | None = None  # what the sampler reports besides: log-probabilities
    stats: RequestStats | None = None  # with the first token, so far, and with the finish
