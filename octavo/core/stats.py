"""What the core remembers to explain itself: each request's timeline, each step's size.

A queue's reasons are kept without touching the queue. The scheduler adds the time between two
steps to the reason that held the queue's head then (`HoldClock`). A request notes the clock when
it begins to wait and when it is admitted; the difference says how long each reason held it, at a
cost that does not depend on how many wait.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

# Why a waiting sequence is not running.
SLOTS = "slots"  # max_num_seqs run already
BUDGET = "budget"  # max_num_batched_tokens are planned already
BLOCKS = "blocks"  # too few free KV blocks
ADAPTERS = "adapters"  # max_loras other adapters run
PREFIX = "prefix"  # a running sequence is computing its prefix just now
PAUSED = "paused"  # an operator paused the engine
TURN = "turn"  # it came between two steps
RESTART = "restart"  # its engine died; added by the front end, never by the core
REASONS = (SLOTS, BUDGET, BLOCKS, ADAPTERS, PREFIX, PAUSED, TURN)

# Chunks a timeline lists one by one; what follows is merged into the last. 2 million tokens of
# prompt at the default budget.
MAX_CHUNKS = 1024

# Steps remembered for the operator's "what was the engine doing": some minutes of decoding.
NUM_RECENT_STEPS = 4096


class PrefillChunk(NamedTuple):
    """A piece of catching up: positions `start` to `end`, and when it was planned and done."""

    start: int
    end: int
    planned_at: float
    applied_at: float


@dataclass(slots=True)
class RequestStats:
    """Where one request's time went."""

    arrival: float
    num_prompt_tokens: int
    added_at: float
    first_planned_at: float | None = None
    first_token_at: float | None = None
    finished_at: float | None = None
    num_cached_tokens: int = 0  # of the known tokens, when first admitted
    num_recached_tokens: int = 0  # given back by the cache after preemptions
    num_preemptions: int = 0
    num_lost_tokens: int = 0  # computed, then dropped by preemptions
    num_output_tokens: int = 0
    num_prefills: int = 0  # times it caught up and sampled: once, and again after preemptions
    num_decode_steps: int = 0  # further steps that gave tokens
    num_accepted_drafts: int = 0  # tokens that were guessed, and so took no step of their own
    chunks: list[PrefillChunk] = field(default_factory=list)
    held_seconds: dict[str, float] = field(default_factory=dict)

    def add_chunk(self, chunk: PrefillChunk) -> None:
        """Append a chunk; past the bound, widen the last one."""
        if len(self.chunks) < MAX_CHUNKS:
            self.chunks.append(chunk)
        else:
            last = self.chunks[-1]
            self.chunks[-1] = last._replace(end=chunk.end, applied_at=chunk.applied_at)


class HoldClock:
    """Seconds for which each reason has held the head of the queue, since the beginning."""

    __slots__ = ("_last", "reason", "seconds")

    def __init__(self) -> None:
        self.seconds = dict.fromkeys(REASONS, 0.0)
        self.reason = TURN
        self._last: float | None = None

    def advance(self, now: float) -> None:
        """Give the time since the last call to the present reason; a clock set back gives none."""
        if self._last is not None and now > self._last:
            self.seconds[self.reason] += now - self._last
        self._last = now

    def read(self) -> tuple[float, ...]:
        """The present reading, to be compared with a later one."""
        return tuple(self.seconds.values())

    def since(self, reading: tuple[float, ...], into: dict[str, float]) -> None:
        """Add to `into` what each reason has gained since `reading`, if anything."""
        for reason, then, seconds in zip(REASONS, reading, self.seconds.values(), strict=True):
            if seconds > then:
                into[reason] = into.get(reason, 0.0) + seconds - then


class StepStats(NamedTuple):
    """The size of one step, as planned, and the state it left."""

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
    held_by: str | None  # what kept the head of the queue out; None: nobody was left waiting


@dataclass(slots=True)
class EngineStats:
    """Totals since the start, and the recent steps."""

    num_steps: int = 0
    num_tokens: int = 0
    num_prefill_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_finished: dict[str, int] = field(default_factory=dict)
    num_drafts: int = 0
    num_accepted_drafts: int = 0  # found right, those behind an end included
    recent: deque[StepStats] = field(default_factory=lambda: deque(maxlen=NUM_RECENT_STEPS))

    def add_step(self, step: StepStats) -> None:
        """Count a step that was planned."""
        self.num_steps += 1
        self.num_tokens += step.num_tokens
        self.num_prefill_tokens += step.num_prefill_tokens
        self.recent.append(step)

    def add_finish(self, reason: str) -> None:
        """Count a request's end."""
        self.num_finished[reason] = self.num_finished.get(reason, 0) + 1
