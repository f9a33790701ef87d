"""A snapshot of an engine's statistics, as it is sent to the front end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple

from octavo.core.engine import EngineCore
from octavo.core.kv.occupancy import MAX_ENTRIES_READ, Occupancy, cells_of, take_occupancy
from octavo.core.sequence import Sequence as KnownSequence
from octavo.core.sequence import Status
from octavo.core.stats import StepStats

MAX_STEPS_SENT = 64  # in one snapshot; the engine itself keeps more
MAX_SEQUENCES_SEEN = 256  # in one view, those that run first


class EngineLoad(NamedTuple):
    """The present load of an engine, which is cheap enough to be taken after each step."""

    num_running: int = 0
    num_waiting: int = 0  # those that are held included
    num_held: int = 0
    num_free_blocks: int = 0


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Totals since the engine's start, its present load, and its most recent steps."""

    taken_at: float = 0.0  # seconds on the engine's clock
    num_steps: int = 0
    num_tokens: int = 0
    num_prefill_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    preempted_for: dict[str, int] = field(default_factory=dict)
    num_drafts: int = 0
    num_chunks_with_drafts: int = 0
    num_accepted_drafts: int = 0
    # See `octavo.core.stats.EngineStats`.
    num_paced: int = 0
    paced_predicted_seconds: float = 0.0
    paced_seconds: float = 0.0
    num_deferred_tokens: int = 0
    accepted_at: tuple[int, ...] = ()
    num_finished: dict[str, int] = field(default_factory=dict)
    steps_by_size: tuple[int, ...] = ()  # see `octavo.core.stats.EngineStats`
    load: EngineLoad = field(default_factory=EngineLoad)
    num_blocks: int = 0
    is_paused: bool = False
    recent: tuple[StepStats, ...] = ()
    recent_seconds: tuple[float, ...] = ()  # how long each took, or has taken so far

    def after(self, earlier: EngineSnapshot) -> EngineSnapshot:
        """Return this snapshot with an earlier engine's totals added: totals never fall."""
        totals: dict[str, Any] = {}
        for name in _BY_REASON:
            sums = dict(getattr(earlier, name))
            for reason, count in getattr(self, name).items():
                sums[reason] = sums.get(reason, 0) + count
            totals[name] = sums
        for name in _TOTALS:
            totals[name] = getattr(self, name) + getattr(earlier, name)
        for name in _LISTS:
            pairs = zip_longest(getattr(self, name), getattr(earlier, name), fillvalue=0)
            totals[name] = tuple([sum(pair) for pair in pairs])
        return replace(self, **totals)

    def with_waiting(self, num_waiting: int) -> EngineSnapshot:
        """Return this snapshot with another number of requests that wait."""
        return replace(self, load=self.load._replace(num_waiting=num_waiting))


_TOTALS = (
    "num_steps",
    "num_tokens",
    "num_prefill_tokens",
    "num_cached_tokens",
    "num_preemptions",
    "num_drafts",
    "num_chunks_with_drafts",
    "num_accepted_drafts",
    "num_paced",
    "paced_predicted_seconds",
    "paced_seconds",
    "num_deferred_tokens",
)
_BY_REASON = ("num_finished", "preempted_for")
_LISTS = ("accepted_at", "steps_by_size")  # totals by place


def together(snapshots: Sequence[EngineSnapshot], *, is_paused: bool) -> EngineSnapshot:
    """Return one snapshot of several engines; its steps are those of the one that is busiest."""
    whole = busiest = max(snapshots, key=lambda each: sum(each.recent_seconds))
    for each in snapshots:
        if each is not busiest:
            whole = whole.after(each)
    loads = [each.load for each in snapshots]
    return replace(
        whole,
        load=EngineLoad(*map(sum, zip(*loads, strict=True))),
        num_blocks=1 + sum(max(0, each.num_blocks - 1) for each in snapshots),  # one is unused
        is_paused=is_paused,
    )


def take_load(core: EngineCore) -> EngineLoad:
    """Return an engine's present load."""
    scheduler = core.scheduler
    queue = scheduler.queue
    return EngineLoad(
        len(scheduler.running), queue.num_waiting, len(queue.held), scheduler.kv.pool.num_free
    )


def take_snapshot(core: EngineCore, now: float) -> EngineSnapshot:
    """Return a snapshot of an engine's statistics."""
    scheduler = core.scheduler
    stats = scheduler.stats
    totals: dict[str, Any] = {name: getattr(stats, name) for name in _TOTALS}
    for name in _LISTS:
        totals[name] = tuple(getattr(stats, name))
    for name in _BY_REASON:
        totals[name] = dict(getattr(stats, name))
    num_recent = min(len(stats.recent), MAX_STEPS_SENT)
    recent = tuple([stats.recent[index] for index in range(-num_recent, 0)])
    num_ended = max(0, num_recent - len(scheduler.in_flight))
    seconds = [stats.recent_seconds[index] for index in range(-num_ended, 0)]
    for step in recent[num_ended:]:
        seconds.append(0.0 if len(seconds) > num_ended else stats.seconds_of(step.planned_at, now))
    return EngineSnapshot(
        taken_at=now,
        **totals,
        load=take_load(core),
        num_blocks=scheduler.config.num_blocks,
        is_paused=scheduler.paused,
        recent=recent,
        recent_seconds=tuple(seconds),
    )


class SequenceView(NamedTuple):
    """One living sequence, as people see it who watch the engine."""

    name: str  # the id of its request in the engine
    state: str  # running, waiting, or held
    num_prompt: int
    num_cached: int  # of the known tokens, when it was first admitted
    num_computed: int
    num_known: int
    max_total: int
    num_drafts: int
    num_accepted_drafts: int
    cells: tuple[int, ...]  # of the view's occupancy, in which it holds blocks
    reason: str  # what it is held for; empty: it is not


class EngineView(NamedTuple):
    """The sequences and the memory of an engine between two of its steps."""

    sequences: tuple[SequenceView, ...]
    num_left_out: int  # living sequences beyond the bound
    occupancy: Occupancy
    blocked_by: str  # why the first that waits is not admitted; empty: nothing waits


def take_view(core: EngineCore) -> EngineView:
    """Return what an engine is doing now; its cost has a bound, however large the engine is."""
    scheduler = core.scheduler
    kv, living = scheduler.kv, scheduler.sequences
    occupancy = take_occupancy(kv.pool)
    others = (each for each in living.values() if each.status is not Status.RUNNING)
    seen = [*islice(chain(scheduler.running, others), MAX_SEQUENCES_SEEN)]
    num_entries = sum([sum(map(len, each.tables)) for each in seen])
    stride = 1 + num_entries // MAX_ENTRIES_READ
    per_page = scheduler.config.blocks_per_page
    views = []
    for each in seen:
        cells = cells_of(each.tables, per_page, occupancy.cell_blocks, stride)
        views.append(_view(each, cells))
    recent = scheduler.stats.recent
    blocked_by = recent[-1].blocked_by if recent and scheduler.queue.num_waiting else None
    num_left_out = len(living) - len(seen)
    return EngineView(tuple(views), num_left_out, occupancy, blocked_by or "")


def _view(sequence: KnownSequence, cells: tuple[int, ...]) -> SequenceView:
    stats, hold = sequence.stats, sequence.hold
    return SequenceView(
        sequence.request_id,
        sequence.status.name.lower(),
        sequence.num_prompt,
        stats.num_cached_tokens,
        sequence.num_computed,
        len(sequence.tokens),
        sequence.max_total,
        stats.num_drafts,
        stats.num_accepted_drafts,
        cells,
        hold.reasons[0] if hold is not None and hold.reasons else "",
    )
