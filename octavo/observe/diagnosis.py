"""Names the bottleneck of the last steps, the evidence, and the setting that would help."""

from __future__ import annotations

from collections import Counter
from typing import Any

from octavo.core import stats as why
from octavo.core.snapshot import EngineSnapshot
from octavo.core.stats import StepStats

_ENOUGH = 0.5  # share of the steps from which on a cause is the bottleneck

_BOTTLENECKS = {
    "idle": ("idle", "none: there is capacity for more requests"),
    why.BLOCKS: ("KV-bound", "kv_cache_memory_bytes (more KV memory), or a smaller max_tokens"),
    why.SLOTS: ("queue-bound", "max_num_seqs (more slots), or another replica"),
    why.BUDGET: ("prefill-bound", "max_num_batched_tokens (larger steps), or cached prefixes"),
    "prefill": ("prefill-bound", "max_num_batched_tokens (larger steps), or cached prefixes"),
    "decode": ("decode-bound", "another replica, or a smaller or quantised model"),
    why.ADAPTERS: ("adapter-bound", "max_loras"),
    why.PAUSED: ("paused", "POST /resume on the admin socket"),
}


def diagnose(snapshot: EngineSnapshot | None, admission: dict[str, Any]) -> dict[str, Any]:
    """Return the bottleneck of the last steps as JSON, with the figures of the admission queue."""
    steps = list(snapshot.recent) if snapshot is not None else []
    cause = _cause(steps, paused=bool(snapshot and snapshot.is_paused))
    verdict, setting = _BOTTLENECKS.get(cause, ("decode-bound", "another replica"))
    return {
        "verdict": verdict,
        "setting": setting,
        "evidence": _evidence(steps),
        "admission": admission,
    }


def _cause(steps: list[StepStats], *, paused: bool) -> str:
    if paused:
        return why.PAUSED
    if not steps:
        return "idle"
    held = Counter(step.blocked_by for step in steps if step.blocked_by not in (None, why.TURN))
    for reason, count in held.most_common(1):
        if count >= _ENOUGH * len(steps):
            return str(reason)
    num_tokens = sum(step.num_tokens for step in steps)
    num_prefill = sum(step.num_prefill_tokens for step in steps)
    heavy = sum(step.num_prefill_tokens > 0 for step in steps)
    if num_prefill > _ENOUGH * max(1, num_tokens) and heavy >= _ENOUGH * len(steps):
        return "prefill"
    return "decode"


def _evidence(steps: list[StepStats]) -> dict[str, Any]:
    if not steps:
        return {"steps": 0}
    num_steps = len(steps)
    held = Counter(str(step.blocked_by) for step in steps if step.blocked_by is not None)
    return {
        "steps": num_steps,
        "seconds": round(max(0.0, steps[-1].planned_at - steps[0].planned_at), 3),
        "tokens_a_step": round(sum(step.num_tokens for step in steps) / num_steps, 1),
        "prefill_share": round(
            sum(step.num_prefill_tokens for step in steps)
            / max(1, sum(step.num_tokens for step in steps)),
            3,
        ),
        "running": round(sum(step.num_running for step in steps) / num_steps, 1),
        "waiting": round(sum(step.num_waiting for step in steps) / num_steps, 1),
        "fewest_free_blocks": min(step.num_free_blocks for step in steps),
        "preempted": sum(step.num_preempted for step in steps),
        "head_of_queue_held_by": {
            reason: round(count / num_steps, 3) for reason, count in held.most_common()
        },
    }
