"""Statistics: each request's timeline, why requests wait, and the size of each step.

The reasons for waiting are counted without touching the queue. The scheduler adds the time
between two steps to the reason that kept the head of an owner's line waiting (`WaitClock`). A
request reads the clock of its line when it begins to wait and when it is admitted; the difference
says how long it waited for each reason, at a cost that does not depend on how many wait.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

# What a waiting sequence waits for.
SLOTS = "slots"  # max_num_seqs sequences run already
BUDGET = "budget"  # max_num_batched_tokens tokens are planned already
PACE = "pace"  # the step takes as long already as running streams may wait (itl_goal)
BLOCKS = "blocks"  # too few free KV blocks
ADAPTERS = "adapters"  # max_loras other adapters run
PREFIX = "prefix"  # a running sequence computes its prefix
PAUSED = "paused"  # an operator paused the engine
SHARE = "share"  # its owner has its share of the engine, or interactive requests go first
TURN = "turn"  # the next step: it was added between two steps
GRAMMAR = "grammar"  # its grammar is loaded into the engine
ADAPTER = "adapter"  # its adapter is loaded
FETCH = "fetch"  # KV of its prefix is fetched from another place
RESTART = "restart"  # a new engine, since its own died; added by the front end, not by the core
REASONS = (SLOTS, BUDGET, PACE, BLOCKS, ADAPTERS, PREFIX, PAUSED, SHARE, TURN)
# What a running sequence is preempted for: BLOCKS that another one lacks, SHARE, or
PRIORITY = "priority"  # a more urgent request of its owner
# What a request may ask to wait for until a `Ready` event: nothing that the core could see itself.
OUTSIDE = (GRAMMAR, ADAPTER)

# Chunks that a timeline lists one by one; later ones are merged into the last. With the default
# budget, they suffice for a prompt of 2 million tokens.
MAX_CHUNKS = 1024

# Steps kept for the operator's question what the engine was doing: some minutes of decoding.
NUM_RECENT_STEPS = 4096


class PrefillChunk(NamedTuple):
    """A chunk of a sequence that catches up: positions `start` to `end`, and its times."""

    start: int
    end: int
    planned_at: float
    applied_at: float


class Restart(NamedTuple):
    """A time in which no engine had the request, since its own had died or none was ready."""

    lost_at: float
    resumed_at: float


@dataclass(slots=True)
class RequestStats:
    """The timeline of one request."""

    arrival: float
    num_prompt_tokens: int
    added_at: float
    first_planned_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    num_cached_tokens: int = 0  # of the known tokens, when first admitted
    num_recached_tokens: int = 0  # found in the cache after preemptions
    num_preemptions: int = 0
    num_yields: int = 0  # preemptions that gave its slot or its blocks to another owner
    num_lost_tokens: int = 0  # computed, then lost by preemptions
    num_output_tokens: int = 0
    num_prefills: int = 0  # how often it caught up and sampled: once, and after each preemption
    num_decode_steps: int = 0  # other steps that sampled
    num_drafts: int = 0  # verified for it
    num_accepted_drafts: int = 0  # output tokens that took no step of their own
    num_predicted: int = 0  # drafts that were of its prediction
    num_accepted_predicted: int = 0
    drafted_at: list[int] = field(default_factory=list)  # by place among a step's drafts
    accepted_at: list[int] = field(default_factory=list)
    num_forced_tokens: int = 0  # output tokens that took no step, as nothing else could come
    num_paced_chunks: int = 0  # of its known tokens, shortened so that others kept their pace
    chunks: list[PrefillChunk] = field(default_factory=list)
    wait_seconds: dict[str, float] = field(default_factory=dict)  # by reason
    restarts: list[Restart] = field(default_factory=list)  # added by the front end
    engines: list[int] = field(default_factory=list)  # likewise: those that had it, in order

    def add_drafts(
        self, count: int, num_accepted: int, *, num_branched: int = 0, are_predicted: bool
    ) -> None:
        """Count the drafts of a step, `count` places long, of which `num_accepted` were accepted.

        Those in branches have the places of others.
        """
        self.num_drafts += count + num_branched
        self.num_accepted_drafts += num_accepted
        if are_predicted:
            self.num_predicted += count
            self.num_accepted_predicted += num_accepted
        add_places(self.drafted_at, count)
        add_places(self.accepted_at, num_accepted)

    def add_chunk(self, chunk: PrefillChunk) -> None:
        """Append a chunk; beyond the bound, extend the last one."""
        if len(self.chunks) < MAX_CHUNKS:
            self.chunks.append(chunk)
        else:
            last = self.chunks[-1]
            self.chunks[-1] = last._replace(end=chunk.end, applied_at=chunk.applied_at)


def add_places(totals: list[int], count: int) -> None:
    """Count one more at each of the first `count` places."""
    totals.extend([0] * (count - len(totals)))
    for place in range(count):
        totals[place] += 1


class SteadyClock:
    """Seconds since the start; they never fall, even if the clock is set back."""

    __slots__ = ("_last", "elapsed")

    def __init__(self) -> None:
        self.elapsed = 0.0
        self._last: float | None = None

    def advance(self, now: float) -> None:
        """Add the time since the last call; nothing if the clock was set back."""
        if self._last is not None and now > self._last:
            self.elapsed += now - self._last
        self._last = now


class WaitClock:
    """Seconds for which each reason has kept the head of one line waiting."""

    __slots__ = ("_last", "reason", "seconds")

    def __init__(self, reason: str = TURN) -> None:
        self.seconds = dict.fromkeys(REASONS, 0.0)
        self.reason = reason
        self._last: float | None = None

    def advance(self, now: float) -> None:
        """Add the time since the last call to the present reason; 0 if the clock was set back."""
        if self._last is not None and now > self._last:
            self.seconds[self.reason] += now - self._last
        self._last = now

    def change_reason(self, reason: str, now: float) -> None:
        """Count the time from `now` on for another reason."""
        self.advance(now)
        self.reason = reason

    def read(self) -> tuple[float, ...]:
        """Return the present reading, for a later `add_since`."""
        return tuple(self.seconds.values())

    def add_since(self, reading: tuple[float, ...], into: dict[str, float]) -> None:
        """Add to `into` the seconds of each reason since `reading`, leaving out zeros."""
        for reason, then, seconds in zip(REASONS, reading, self.seconds.values(), strict=True):
            if seconds > then:
                into[reason] = into.get(reason, 0.0) + seconds - then


class StepStats(NamedTuple):
    """The size of one step when it was planned, and the state after planning."""

    step: int
    planned_at: float
    num_chunks: int
    num_tokens: int
    num_prefill_tokens: int
    num_admitted: int
    num_preempted: int
    num_running: int
    num_waiting: int
    num_free_blocks: int
    blocked_by: str | None  # why the queue's head was not admitted; None: nothing waits
    # What the time of the step depends on, beside the numbers of tokens (pace/step_time.py).
    num_read: int = 0  # positions before the chunks of sequences that decode
    num_prefill_pairs: int = 0  # (a token of a prompt, a position that it reads)
    num_pooled_tokens: int = 0  # of the prefill tokens, those of requests for vectors
    predicted_seconds: float = 0.0  # 0: nothing had to be predicted


@dataclass(slots=True)
class EngineStats:
    """Totals since the start, and the most recent steps."""

    num_steps: int = 0
    num_tokens: int = 0
    num_prefill_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    preempted_for: dict[str, int] = field(default_factory=dict)  # the same, by reason
    num_finished: dict[str, int] = field(default_factory=dict)
    num_drafts: int = 0
    num_chunks_with_drafts: int = 0
    num_accepted_drafts: int = 0  # without those cut off after an ending token
    accepted_at: list[int] = field(default_factory=list)  # by place among a chunk's drafts
    # Steps with at most 2**index tokens, and more than half of that.
    steps_by_size: list[int] = field(default_factory=list)
    recent: deque[StepStats] = field(default_factory=lambda: deque(maxlen=NUM_RECENT_STEPS))
    # How long each of `recent` took, without those that have not ended.
    recent_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_RECENT_STEPS))
    # What a second model took of each.
    recent_ahead: deque[float] = field(default_factory=lambda: deque(maxlen=NUM_RECENT_STEPS))
    ended_at: float = float("-inf")  # the last step that has
    num_ended: int = 0
    num_paced: int = 0  # steps whose time was predicted, since some sequences decoded in them
    paced_predicted_seconds: float = 0.0  # of those that have ended
    paced_seconds: float = 0.0  # how long they took
    num_deferred_tokens: int = 0  # left out of a step that had room for them, to bound its time

    def add_step(self, step: StepStats) -> None:
        """Count a step that has been planned."""
        self.num_steps += 1
        self.num_tokens += step.num_tokens
        self.num_prefill_tokens += step.num_prefill_tokens
        self.recent.append(step)
        if step.num_tokens:
            index = (step.num_tokens - 1).bit_length()
            if index >= len(self.steps_by_size):
                self.steps_by_size.extend([0] * (index + 1 - len(self.steps_by_size)))
            self.steps_by_size[index] += 1

    def seconds_of(self, planned_at: float, now: float) -> float:
        """Return how long the oldest step that has not ended takes; 0 if the clock was set back.

        A step that was planned while another one ran began when that one ended.
        """
        return max(0.0, now - max(planned_at, self.ended_at))

    def end_step(
        self, planned_at: float, now: float, predicted: float = 0.0, ahead: float = 0.0
    ) -> None:
        """Note how long the oldest step that had not ended took, and a second model in it."""
        ended_at = self.ended_at
        seconds = max(0.0, now - (planned_at if planned_at > ended_at else ended_at))
        self.recent_seconds.append(seconds)
        self.recent_ahead.append(min(seconds, ahead))
        self.ended_at = now
        self.num_ended += 1
        if predicted:
            self.num_paced += 1
            self.paced_predicted_seconds += predicted
            self.paced_seconds += seconds

    def ended_after(self, number: int, most: int) -> list[tuple[StepStats, float]]:
        """Return the steps that have ended after the first `number`, with the seconds of each.

        Those that a second model took are left out.
        Of more than twice `most`, return the first and the last ones.
        """
        behind = self.num_steps - self.num_ended
        count = min(self.num_ended - number, NUM_RECENT_STEPS - behind)
        places = list(range(count, 0, -1))
        if count > 2 * most:
            places = places[:most] + places[-most:]
        return [(self.recent[-place - behind], self.own_seconds(place)) for place in places]

    def own_seconds(self, place: int) -> float:
        """Return how long the last but `place` - 1 step took without a second model."""
        return self.recent_seconds[-place] - self.recent_ahead[-place]

    def add_accepted(self, count: int) -> None:
        """Count the drafts of a chunk that were accepted: its first `count`."""
        self.num_accepted_drafts += count
        add_places(self.accepted_at, count)

    def add_preemption(self, reason: str) -> None:
        """Count a running sequence that was preempted, by the reason."""
        self.num_preemptions += 1
        self.preempted_for[reason] = self.preempted_for.get(reason, 0) + 1

    def add_finish(self, reason: str) -> None:
        """Count a request that ended, by its finish reason."""
        self.num_finished[reason] = self.num_finished.get(reason, 0) + 1
