"""A snapshot of an engine's statistics, as it is sent to the front end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from octavo.core.engine import EngineCore
from octavo.core.stats import StepStats

MAX_STEPS_SENT = 64  # in one snapshot; the engine itself keeps more


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """Totals since the engine's start, its present load, and its most recent steps."""

    taken_at: float = 0.0  # seconds on the engine's clock
    num_steps: int = 0
    num_tokens: int = 0
    num_prefill_tokens: int = 0
    num_cached_tokens: int = 0
    num_preemptions: int = 0
    num_drafts: int = 0
    num_chunks_with_drafts: int = 0
    num_accepted_drafts: int = 0
    accepted_at: tuple[int, ...] = ()
    num_finished: dict[str, int] = field(default_factory=dict)
    num_running: int = 0
    num_waiting: int = 0
    num_free_blocks: int = 0
    num_blocks: int = 0
    is_paused: bool = False
    recent: tuple[StepStats, ...] = ()

    def after(self, earlier: EngineSnapshot) -> EngineSnapshot:
        """Return this snapshot with an earlier engine's totals added: totals never fall."""
        finished = dict(earlier.num_finished)
        for reason, count in self.num_finished.items():
            finished[reason] = finished.get(reason, 0) + count
        totals = {name: getattr(self, name) + getattr(earlier, name) for name in _TOTALS}
        places = zip_longest(self.accepted_at, earlier.accepted_at, fillvalue=0)
        accepted_at = tuple([sum(pair) for pair in places])
        return replace(self, num_finished=finished, accepted_at=accepted_at, **totals)


_TOTALS = (
    "num_steps",
    "num_tokens",
    "num_prefill_tokens",
    "num_cached_tokens",
    "num_preemptions",
    "num_drafts",
    "num_chunks_with_drafts",
    "num_accepted_drafts",
)


def take_snapshot(core: EngineCore, now: float) -> EngineSnapshot:
    """Return a snapshot of an engine's statistics."""
    scheduler = core.scheduler
    stats = scheduler.stats
    totals: dict[str, Any] = {name: getattr(stats, name) for name in _TOTALS}
    num_recent = len(stats.recent)
    return EngineSnapshot(
        taken_at=now,
        **totals,
        num_finished=dict(stats.num_finished),
        accepted_at=tuple(stats.accepted_at),
        num_running=len(scheduler.running),
        num_waiting=scheduler.queue.num_waiting,
        num_free_blocks=scheduler.kv.pool.num_free,
        num_blocks=scheduler.config.num_blocks,
        is_paused=scheduler.paused,
        recent=tuple(stats.recent[index] for index in range(-min(num_recent, MAX_STEPS_SENT), 0)),
    )
