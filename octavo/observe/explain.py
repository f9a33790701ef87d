"""Explains where a request's time went: phases, a timeline, and a sentence with the main cause."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any, Literal

from octavo.core import stats as why
from octavo.core.sampling_params import SamplingParams
from octavo.core.stats import PrefillChunk, RequestStats

Kind = Literal["queue", "prefill", "preempted", "recomputed", "decode", "restart", "lost"]


@dataclass(frozen=True, slots=True)
class Phase:
    """A time in which one thing happened to a request.

    It computed its known tokens for the first time ("prefill"), after a preemption, or once more
    after its engine had died ("recomputed"). What an engine did for it that died before its first
    token is not known: it is "lost".
    """

    kind: Kind
    begin: float
    end: float
    chunks: Sequence[PrefillChunk] = field(default=())

    @property
    def seconds(self) -> float:
        """The length of the phase."""
        return max(0.0, self.end - self.begin)


def phases(stats: RequestStats, now: float) -> list[Phase]:
    """Return the phases of a request until its end, or until now if it runs."""
    found: list[Phase] = []
    begin, end = stats.added_at, stats.finished_at or now
    has_emitted = False
    for restart in stats.restarts:
        if restart.lost_at > begin:
            part = list(_in_one_engine(stats, begin, restart.lost_at, has_emitted))
            if part and part[-1].kind == "queue":
                part[-1] = Phase("lost", part[-1].begin, part[-1].end)
            found += part
            first = stats.first_token_at
            has_emitted = first is not None and first <= restart.lost_at
        found.append(Phase("restart", restart.lost_at, restart.resumed_at))
        begin = max(begin, restart.resumed_at)
    found += _in_one_engine(stats, begin, end, has_emitted)
    return sorted(found, key=lambda phase: phase.begin)


def _in_one_engine(
    stats: RequestStats, begin: float, end: float, has_emitted: bool
) -> Iterator[Phase]:
    """Yield the phases between two moments, in which no engine died."""
    groups = _groups([chunk for chunk in stats.chunks if begin <= chunk.planned_at < end])
    if not groups:
        yield Phase("queue", begin, end)
        return
    yield Phase("queue", begin, groups[0][0].planned_at)
    kind: Kind = "recomputed" if has_emitted else "prefill"
    first = stats.first_token_at
    for index, group in enumerate(groups):
        caught_up = group[-1].applied_at
        yield Phase(kind, group[0].planned_at, caught_up, group)
        is_last = index + 1 == len(groups)
        until = end if is_last else groups[index + 1][0].planned_at
        if first is not None and first <= until and until > caught_up:
            yield Phase("decode", caught_up, until)
        kind = "preempted"


def _groups(chunks: Sequence[PrefillChunk]) -> list[list[PrefillChunk]]:
    """Divide chunks into runs that continue each other: each preemption begins a new one."""
    groups: list[list[PrefillChunk]] = []
    for chunk in chunks:
        if groups and chunk.start >= groups[-1][-1].end:
            groups[-1].append(chunk)
        else:
            groups.append([chunk])
    return groups


MAX_PARTS = 128  # prefill chunks listed one by one
_HELD = {
    why.SLOTS: "all slots were taken (max_num_seqs)",
    why.BUDGET: "the steps' token budget was used up (max_num_batched_tokens)",
    why.PACE: "the steps took as long already as running streams may wait (itl_goal)",
    why.BLOCKS: "too few KV blocks were free",
    why.ADAPTERS: "other adapters were running (max_loras)",
    why.SHARE: "its key had its share of the engine, or other work went first",
    why.PREFIX: "another request was computing the same prefix",
    why.GRAMMAR: "its grammar was being loaded",
    why.ADAPTER: "its adapter was being loaded",
    why.FETCH: "KV of its prefix was being fetched",
    why.PAUSED: "an operator had paused the engine",
    why.TURN: "a step had to end first",
    why.RESTART: "the engine had died and was being restarted",
}
_ADVICE = {
    "template": "a shorter conversation or a simpler chat template reduces it",
    "tokenize": "a shorter prompt, or one sent as token ids, reduces it",
    "admission": "more slots (max_num_seqs) or another replica reduce it",
    why.SLOTS: "a larger max_num_seqs reduces it",
    why.BUDGET: "a larger max_num_batched_tokens reduces it",
    why.PACE: "a larger itl_goal or a ttft_goal reduces it, at the cost of running streams",
    why.BLOCKS: "more KV memory (kv_cache_memory_bytes) or a smaller max_tokens reduces it",
    why.ADAPTERS: "a larger max_loras reduces it",
    why.SHARE: "more slots (max_num_seqs), a larger key weight or fewer requests at once reduce it",
    why.PREFIX: "nothing needs to change: otherwise this request would have computed the prefix",
    why.GRAMMAR: "a grammar that is in use already, or a smaller one, reduces it",
    why.ADAPTER: "loading the adapter before it is asked for reduces it",
    why.FETCH: "a faster connection to where the KV is kept reduces it",
    why.PAUSED: "resuming sooner reduces it",
    why.TURN: "smaller steps (max_num_batched_tokens) reduce it",
    why.RESTART: "the log says why the engine died",
    "prefill": "a shorter prompt, a cached prefix or a larger max_num_batched_tokens reduces it",
    "decode": "a smaller max_tokens, or fewer requests at once (max_num_seqs), reduces it",
    "preempted": "more KV memory (kv_cache_memory_bytes) or a smaller max_num_seqs reduces it",
    "recomputed": "the log says why the engine died",
    "lost": "the log says why the engine died",
    "client": "a faster reader or a better connection reduces it",
}
_COUNTED_AS_WAITS = ("queue", "restart")  # by `wait_seconds`, with the reasons
_NAMES = {
    "template": "the chat template",
    "tokenize": "tokenising the prompt",
    "admission": "waiting in the admission queue, because the engine was full",
    "prefill": "computing the prompt",
    "decode": "generating tokens one after the other",
    "preempted": "recomputing tokens that preemptions had dropped",
    "recomputed": "recomputing tokens after the engine had died",
    "lost": "work that was lost when the engine died",
    "client": "waiting for a slow client",
}


@dataclass(slots=True)
class Record:
    """The times and counts of one request; times are those of the monotonic clock."""

    request_id: str
    owner: str
    began: float
    template_seconds: float = 0.0
    tokenize_seconds: float = 0.0
    prepared_at: float | None = None
    entered_at: float | None = None
    first_byte_at: float | None = None
    ended_at: float | None = None
    client_seconds: float = 0.0
    stats: RequestStats | None = None
    sampling: SamplingParams | None = None  # while it is running: its lists may be long
    parameters: dict[str, Any] | None = None  # afterwards
    priority: int = 0
    is_stream: bool = False
    num_prompt_tokens: int = 0
    num_output_tokens: int = 0
    outcome: str = "running"
    accumulation_order: str = ""  # of the engine's sums, on which bits depend
    adapter: str | None = None  # its name
    adapter_id: str | None = None  # the digest of its content, with its scale
    finish_reasons: list[str] = field(default_factory=list)  # of the first sequences that ended

    def end(self, now: float, num_output_tokens: int) -> None:
        """Complete the record, and keep no more than it shows."""
        self.ended_at, self.num_output_tokens = now, num_output_tokens
        if self.outcome == "running":  # nothing says that it went well
            self.outcome = "failed"
        self.parameters, self.sampling = _parameters(self), None

    def explain(self, now: float) -> dict[str, Any]:
        """Return the explanation as JSON; the request may still be running."""
        end = self.ended_at or now
        shares = _shares(self, end)
        return {
            "request_id": self.request_id,
            "outcome": self.outcome,
            "total_ms": _ms(end - self.began),
            "time_to_first_byte_ms": _ms_since(self.began, self.first_byte_at),
            "timeline": _timeline(self, end),
            "prompt_tokens": self.num_prompt_tokens,
            "cached_tokens": self.stats.num_cached_tokens if self.stats else None,
            "completion_tokens": self.num_output_tokens,
            "drafted_tokens": self.stats.num_drafts if self.stats else None,
            "accepted_draft_tokens": self.stats.num_accepted_drafts if self.stats else None,
            "drafts_by_position": _by_position(self.stats),
            "prediction": _predicted(self.stats),
            "forced_tokens": self.stats.num_forced_tokens if self.stats else None,
            "paced_chunks": self.stats.num_paced_chunks if self.stats else None,
            "preemptions": self.stats.num_preemptions if self.stats else None,
            "slots_given_to_other_keys": self.stats.num_yields if self.stats else None,
            "engines": self.stats.engines if self.stats else None,
            "engine_restart_ms": _ms(self.stats.wait_seconds.get(why.RESTART, 0.0))
            if self.stats
            else None,
            "waited_for_client_ms": _ms(self.client_seconds),
            "accumulation_order": self.accumulation_order,
            "adapter": self.adapter,
            "adapter_id": self.adapter_id,
            "parameters": self.parameters or _parameters(self),
            "cause": _sentence(shares, end - self.began) + _about_pace(self.stats),
        }


def _by_position(stats: RequestStats | None) -> list[dict[str, int]] | None:
    """Return how many drafts there were at each place of a step's drafts, and how many right."""
    if stats is None:
        return None
    pairs = zip_longest(stats.drafted_at, stats.accepted_at, fillvalue=0)
    return [{"drafted": drafted, "accepted": accepted} for drafted, accepted in pairs]


def _predicted(stats: RequestStats | None) -> dict[str, int] | None:
    """Return how many drafts were of the request's prediction, and how many of them right."""
    if stats is None:
        return None
    return {"drafted": stats.num_predicted, "accepted": stats.num_accepted_predicted}


class Recent:
    """The records of the last requests."""

    def __init__(self, size: int) -> None:
        self._size = size
        # By key and id: clients may choose ids, and must not replace those of another key.
        self._records: OrderedDict[tuple[str, str], Record] = OrderedDict()

    def add(self, record: Record) -> None:
        """Add a record, in place of one of the same key and id, and drop the oldest one."""
        if self._size:
            name = (record.owner, record.request_id)
            self._records.pop(name, None)
            self._records[name] = record
            if len(self._records) > self._size:
                self._records.popitem(last=False)

    def find(self, name: str, owner: str) -> Record | None:
        """Return the record of a request's id, or None; only the key's own are found."""
        return self._records.get((owner, name))

    def ended_of(self, owner: str) -> Iterator[Record]:
        """Yield a key's records of requests that have ended, the newest first."""
        for record in reversed(self._records.values()):
            if record.owner == owner and record.ended_at is not None:
                yield record


def _parameters(record: Record) -> dict[str, Any]:
    """Return the effective parameters of a request."""
    sampling = record.sampling
    if sampling is None:
        return {}
    names = (
        *("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "n"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos"),
        *("logprobs", "prompt_logprobs"),
    )
    values = {name: getattr(sampling, name) for name in names}
    values["num_stop_strings"] = len(sampling.stop)
    return {**values, "priority": record.priority, "stream": record.is_stream}


def _shares(record: Record, end: float) -> dict[str, float]:
    shares = {
        "template": record.template_seconds,
        "tokenize": record.tokenize_seconds,
        "client": record.client_seconds,
    }
    if record.prepared_at is not None:
        shares["admission"] = (record.entered_at or end) - record.prepared_at
    if record.stats is None:
        return shares
    shares.update(record.stats.wait_seconds)
    for phase in phases(record.stats, end):
        if phase.kind not in _COUNTED_AS_WAITS:
            shares[phase.kind] = shares.get(phase.kind, 0.0) + phase.seconds
    if "decode" in shares:
        shares["decode"] = max(0.0, shares["decode"] - record.client_seconds)
    return shares


def _sentence(shares: Mapping[str, float], total: float) -> str:
    name, seconds = max(shares.items(), key=lambda each: each[1])
    if total <= 0 or seconds <= 0:
        return "Nothing took a noticeable time."
    what = _NAMES.get(name) or f"waiting in the queue because {_HELD.get(name, name)}"
    share = min(100.0, 100 * seconds / total)
    text = f"{_ms(seconds)} of {_ms(total)} ms ({share:.0f} %) went into {what}"
    return f"{text}; {_ADVICE[name]}." if name in _ADVICE else f"{text}."


def _about_pace(stats: RequestStats | None) -> str:
    """Return a sentence about chunks that were cut for other requests, if any were."""
    count = 0 if stats is None else stats.num_paced_chunks
    if not count:
        return ""
    chunks = "1 chunk" if count == 1 else f"{count} chunks"
    were = "was" if count == 1 else "were"
    return f" {chunks} of its prompt {were} cut short so that others kept their pace (itl_goal)."


def _timeline(record: Record, end: float) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []

    def add(what: str, begin: float, seconds: float, **more: Any) -> None:
        begun = _ms(begin - record.began)
        parts.append({"what": what, "at_ms": begun, "took_ms": _ms(seconds), **more})

    if record.prepared_at is not None:
        tokenised = record.prepared_at - record.tokenize_seconds
        add("template", tokenised - record.template_seconds, record.template_seconds)
        add("tokenize", tokenised, record.tokenize_seconds)
        add("admission", record.prepared_at, (record.entered_at or end) - record.prepared_at)
    stats = record.stats
    if stats is None:
        return parts
    reasons = {reason: _ms(seconds) for reason, seconds in stats.wait_seconds.items()}
    for phase in phases(stats, end):
        more: dict[str, Any] = {}
        if phase.kind == "queue" and reasons:  # over all queues
            more, reasons = {"reasons_ms": reasons}, {}
        for chunk in phase.chunks[:MAX_PARTS]:
            took = chunk.applied_at - chunk.planned_at
            add(phase.kind, chunk.planned_at, took, from_token=chunk.start, to_token=chunk.end)
        if not phase.chunks:
            add(phase.kind, phase.begin, phase.seconds, **more)
    for part in reversed(parts):
        if part["what"] == "decode":
            part["steps"] = stats.num_decode_steps  # of all its parts
            break
    if stats.num_preemptions:
        more = {"lost": stats.num_lost_tokens}
        if stats.num_yields:
            more["given_to_other_keys"] = stats.num_yields
        add("preemptions", end, 0.0, count=stats.num_preemptions, **more)
    return parts


def _ms(seconds: float) -> float:
    return round(1000 * seconds, 3)


def _ms_since(began: float, then: float | None) -> float | None:
    return None if then is None else _ms(then - began)
