"""Names the bottleneck of the last steps, the evidence, and the setting that would help."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from octavo.core import stats as why
from octavo.core.snapshot import EngineSnapshot
from octavo.core.stats import StepStats

_ENOUGH = 0.5  # share of the steps' time from which on a cause is the bottleneck
_BUSY = 0.5  # share of the time in which steps ran, below which there is capacity left

_BOTTLENECKS = {
    "idle": ("idle", "none: there is capacity for more requests"),
    why.BLOCKS: ("KV-bound", "kv_cache_memory_bytes (more KV memory), or a smaller max_tokens"),
    why.SLOTS: ("queue-bound", "max_num_seqs (more slots), or another replica"),
    why.BUDGET: ("prefill-bound", "max_num_batched_tokens (larger steps), or cached prefixes"),
    why.PACE: ("prefill-bound", "itl_goal (longer steps), ttft_goal, or another replica"),
    "prefill": ("prefill-bound", "max_num_batched_tokens (larger steps), or cached prefixes"),
    "decode": ("decode-bound", "another replica, or a smaller or quantised model"),
    why.ADAPTERS: ("adapter-bound", "max_loras"),
    why.PAUSED: ("paused", "POST /resume on the admin socket"),
}


class _Window:
    """The last steps, each with the seconds that it took: a long step weighs more."""

    def __init__(self, snapshot: EngineSnapshot) -> None:
        self.steps: tuple[StepStats, ...] = ()
        self.seconds: tuple[float, ...] = ()
        self.span = 0.0  # from the first step's plan to the end of the last one
        if snapshot.recent:
            self.steps, self.seconds = snapshot.recent, snapshot.recent_seconds
            first, last = self.steps[0].planned_at, self.steps[-1].planned_at
            self.span = max(last + self.seconds[-1] - first, sum(self.seconds))
        self.busy = sum(self.seconds)
        self.held: defaultdict[str, float] = defaultdict(float)  # seconds, by reason
        self.prefill = 0.0  # seconds of the steps of which most tokens were prompts'
        for step, seconds in zip(self.steps, self.seconds, strict=True):
            if step.blocked_by is not None:
                self.held[step.blocked_by] += seconds
            if 2 * step.num_prefill_tokens > step.num_tokens:
                self.prefill += seconds

    def share(self, seconds: float) -> float:
        """Return a part of the time in which steps ran."""
        return seconds / self.busy if self.busy else 0.0

    def mean(self, values: list[int]) -> float:
        """Return the mean of a value of each step over the time."""
        if not self.busy:
            return 0.0
        pairs = zip(values, self.seconds, strict=True)
        return round(sum(value * seconds for value, seconds in pairs) / self.busy, 1)


def diagnose(snapshots: Sequence[EngineSnapshot], admission: dict[str, Any]) -> dict[str, Any]:
    """Return the bottleneck of the last steps as JSON, with the figures of the admission queue.

    Of several engines it is that of the busiest; the list has all of them, by their numbers.
    """
    windows = [_Window(snapshot) for snapshot in snapshots]
    found = [
        _diagnose(window, is_paused=snapshot.is_paused)
        for window, snapshot in zip(windows, snapshots, strict=True)
    ]
    busiest = max(range(len(found)), key=lambda index: windows[index].busy)
    return {**found[busiest], "admission": admission, "engines": found}


def _diagnose(window: _Window, *, is_paused: bool) -> dict[str, Any]:
    """Return the bottleneck of one engine."""
    cause = _cause(window, paused=is_paused)
    verdict, setting = _BOTTLENECKS.get(cause, ("decode-bound", "another replica"))
    return {"verdict": verdict, "setting": setting, "evidence": _evidence(window)}


def _cause(window: _Window, *, paused: bool) -> str:
    if paused:
        return why.PAUSED
    held = [(seconds, reason) for reason, seconds in window.held.items() if reason != why.TURN]
    most, reason = max(held, default=(0.0, ""))
    if window.busy and window.share(most) >= _ENOUGH:
        return reason
    if window.busy <= _BUSY * window.span:
        return "idle"
    return "prefill" if window.share(window.prefill) > _ENOUGH else "decode"


def _evidence(window: _Window) -> dict[str, Any]:
    steps = window.steps
    if not steps:
        return {"steps": 0}
    held = sorted(window.held.items(), key=lambda each: -each[1])
    return {
        "steps": len(steps),
        "seconds": round(window.span, 3),
        "busy_share": round(window.busy / window.span, 3) if window.span else 0.0,
        "tokens_a_step": round(sum(step.num_tokens for step in steps) / len(steps), 1),
        "prefill_share": round(window.share(window.prefill), 3),
        "running": window.mean([step.num_running for step in steps]),
        "waiting": window.mean([step.num_waiting for step in steps]),
        "fewest_free_blocks": min(step.num_free_blocks for step in steps),
        "preempted": sum(step.num_preempted for step in steps),
        "head_of_queue_held_by": {
            reason: round(window.share(seconds), 3) for reason, seconds in held
        },
    }
