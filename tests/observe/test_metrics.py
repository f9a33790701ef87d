"""Metrics read from an engine: of speculation, under vLLM's names too, and of bounded steps."""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.core.snapshot import EngineLoad, EngineSnapshot
from octavo.core.stats import RequestStats
from octavo.observe.metrics import Metrics


class NoQueue:
    """An admission queue without requests."""

    num_waiting = waiting_tokens = waiting_bytes = 0

    def by_owner(self) -> list[tuple[str, int, int]]:
        return [("key", 3, 5)]


SNAPSHOT = EngineSnapshot(
    num_chunks_with_drafts=7, num_drafts=20, num_accepted_drafts=9, accepted_at=(6, 2, 1)
)


def exposed(metrics: Metrics, prefix: str) -> dict[str, float]:
    """Return the samples of speculation, by name and position."""
    found = {}
    for line in metrics.text("m", prefix).decode().splitlines():
        if line.startswith(f"{prefix}:spec_decode"):
            name, value = line.rsplit(" ", 1)
            name = name.removeprefix(f"{prefix}:spec_decode_").replace(
                'model_name="m",engine="0"', ""
            )
            found[name] = float(value)
    return found


@pytest.mark.parametrize("prefix", ["octavo", "vllm"])
def test_speculation_is_counted_as_in_vllm(prefix: str) -> None:
    current = [SNAPSHOT]
    metrics = Metrics(NoQueue(), lambda: current, lambda: 1.0)
    expected = {
        "num_drafts_total{}": 7,
        "num_draft_tokens_total{}": 20,
        "num_accepted_tokens_total{}": 9,
        'num_accepted_tokens_per_pos_total{,position="0"}': 6,
        'num_accepted_tokens_per_pos_total{,position="1"}': 2,
        'num_accepted_tokens_per_pos_total{,position="2"}': 1,
    }
    assert exposed(metrics, prefix) == expected
    current[0] = replace(SNAPSHOT, num_drafts=3, accepted_at=(1,))
    assert exposed(metrics, prefix) == expected


def test_without_speculation_the_totals_are_zero() -> None:
    metrics = Metrics(NoQueue(), lambda: [EngineSnapshot()], lambda: 1.0)
    assert exposed(metrics, "octavo") == {
        "num_drafts_total{}": 0,
        "num_draft_tokens_total{}": 0,
        "num_accepted_tokens_total{}": 0,
    }


def test_steps_whose_time_is_bounded_are_counted() -> None:
    """The names are ours in either mode."""
    snapshot = EngineSnapshot(
        num_paced=4, paced_seconds=0.5, paced_predicted_seconds=0.25, num_deferred_tokens=900
    )
    text = Metrics(NoQueue(), lambda: [snapshot], lambda: 1.0).text("m", "vllm").decode()
    samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    labels = '{model_name="m",engine="0"}'
    expected = {
        "paced_steps": 4,
        "paced_step_seconds": 0.5,
        "paced_step_predicted_seconds": 0.25,
        "deferred_tokens": 900,
    }
    for name, value in expected.items():
        assert float(samples[f"octavo:{name}_total{labels}"]) == value


def test_keys_and_the_reasons_of_preemptions_are_labels() -> None:
    snapshot = EngineSnapshot(preempted_for={"share": 4, "blocks": 2})
    text = Metrics(NoQueue(), lambda: [snapshot], lambda: 1.0).text("m", "octavo").decode()
    for line in (
        'octavo:key_sequences_admitted{model_name="m",engine="0",key="key"} 3',
        'octavo:key_requests_waiting{model_name="m",engine="0",key="key"} 5',
        'octavo:preemptions_by_reason_total{model_name="m",engine="0",reason="share"} 4',
    ):
        assert f"{line}" in text


def test_requests_beyond_a_limit_of_the_queue_are_counted_under_its_name() -> None:
    metrics = Metrics(NoQueue(), lambda: [EngineSnapshot()], lambda: 1.0)
    for reason in ("queue_full", "tokens", "tokens", "deadline"):
        metrics.reject(reason)
    text = metrics.text("m", "vllm").decode()
    limits = {"max_num_queued_reqs": 1, "max_num_queued_tokens": 2}
    for limit, count in limits.items():
        labels = f'model_name="m",engine="0",reason="{limit}"'
        assert f"vllm:admission_rejections_total{{{labels}}} {count:.1f}\n" in text
    assert metrics.rejected.value("deadline") == 1


def test_preemptions_are_counted_for_each_sequence() -> None:
    metrics = Metrics(NoQueue(), lambda: [EngineSnapshot()], lambda: 1.0)
    for count in (0, 2, 7):
        metrics.observe_stats(RequestStats(0.0, 3, 0.0, num_preemptions=count), 1.0)
    text = metrics.text("m", "vllm").decode()
    labels = 'model_name="m",engine="0"'
    assert f"vllm:request_num_preemptions_sum{{{labels}}} 9.0\n" in text
    assert f'vllm:request_num_preemptions_bucket{{{labels},le="2.0"}} 2.0\n' in text


def test_each_engine_has_series_of_its_own_and_their_queue_is_of_all() -> None:
    snapshots = [
        EngineSnapshot(num_cached_tokens=5, load=EngineLoad(2, 1, 1, 3), num_blocks=5),
        EngineSnapshot(num_cached_tokens=7, steps_by_size=(4,), num_blocks=5),
    ]
    queue = NoQueue()
    queue.num_waiting = 6
    metrics = Metrics(queue, lambda: snapshots, lambda: 1.0)
    metrics.add_engine_counter("deaths", "Ends.", lambda: [0, 3])
    metrics.rejected.add(1, "queue_full")
    lines = metrics.text("m", "vllm").decode().splitlines()
    for line in (
        'vllm:prefix_cache_hits_total{model_name="m",engine="0"} 5.0',
        'vllm:prefix_cache_hits_total{model_name="m",engine="1"} 7.0',
        'vllm:num_requests_running{model_name="m",engine="0"} 2.0',
        'vllm:num_requests_waiting{model_name="m",engine="0"} 1.0',
        'vllm:num_requests_waiting{model_name="m",engine="1"} 0.0',
        'vllm:num_requests_waiting{model_name="m",engine="all"} 6.0',
        'vllm:num_requests_waiting_by_reason{model_name="m",engine="0",reason="deferred"} 1.0',
        'vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.25',
        'vllm:iteration_tokens_total_count{model_name="m",engine="1"} 4.0',
        'octavo:deaths_total{model_name="m",engine="1"} 3.0',
        'octavo:rejected_total{model_name="m",engine="all",reason="queue_full"} 1.0',
    ):
        assert line in lines
    assert metrics.load() == {"kv_cache_usage_perc": 0.625, "num_requests_waiting": 7.0}
