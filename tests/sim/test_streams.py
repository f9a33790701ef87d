"""Endless streams of requests, which worlds do not have: every request gets its turn."""

from __future__ import annotations

from array import array

from octavo.core.config import CoreConfig
from octavo.core.plan import NO_TOKEN, StepResult
from octavo.core.request import Request
from octavo.core.sampling_params import SamplingParams
from octavo.core.scheduler import Scheduler


def _request(name: str, prompt: list[int], arrival: float, lora: str | None = None) -> Request:
    return Request(name, array("i", prompt), SamplingParams(max_tokens=4), arrival, lora=lora)


def _step(scheduler: Scheduler, now: float) -> None:
    plan = scheduler.schedule(now)
    if plan is not None:
        tokens = tuple(7 if samples else NO_TOKEN for samples in plan.samples)
        scheduler.apply(StepResult(plan.step, tokens), now)


def test_a_stream_of_requests_for_two_adapters_does_not_starve_a_third() -> None:
    """A request for another adapter runs although both adapter slots are always in demand."""
    config = CoreConfig(num_blocks=400, max_model_len=100, max_num_seqs=8, max_loras=2)
    scheduler = Scheduler(config, b"key")
    for adapter in ("a", "b"):
        scheduler.add(_request(adapter, [1] * 5, 0.0, adapter), 0.0)
    _step(scheduler, 0.0)
    scheduler.add(_request("late", [2] * 5, 0.5, "c"), 0.5)
    for tick in range(1, 200):
        adapter = "ab"[tick % 2]
        scheduler.add(_request(f"r{tick}", [3, tick], float(tick), adapter), float(tick))
        _step(scheduler, float(tick))
    assert "late" not in scheduler.sequences
