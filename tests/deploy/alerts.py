"""The alert rules of Prometheus, over names of the catalogue."""

from __future__ import annotations

from typing import NamedTuple

_TTFT = "histogram_quantile(0.99, sum by (le, model_name) (rate(octavo:{}_bucket[5m])))"
_RESPONSES = "sum by (instance) (rate(octavo:http_responses_total{}[5m]))"
_FAILED = _RESPONSES.format('{status=~"5.."}')


class Alert(NamedTuple):
    """One rule: when it fires, how urgent it is, and what a person does about it."""

    name: str
    expression: str
    minutes: int
    severity: str
    summary: str
    action: str


ALERTS = (
    Alert(
        "OctavoDown",
        'up{job="octavo"} == 0',
        1,
        "critical",
        "a server does not answer",
        "Look at its log; exit codes 2 and 3 mean that starting it again cannot help.",
    ),
    Alert(
        "OctavoNotReady",
        "octavo:ready == 0",
        2,
        "critical",
        "a server serves no requests",
        "GET /health/ready says why: a restart of the engine, a drain, or no steps.",
    ),
    Alert(
        "OctavoEngineDies",
        "increase(octavo:engine_deaths_total[15m]) > 2",
        0,
        "warning",
        "an engine dies again and again",
        "The log names the reason of each death; requests continue meanwhile.",
    ),
    Alert(
        "OctavoQueueGrows",
        "min_over_time(octavo:queue_requests[5m]) > 32",
        5,
        "warning",
        "requests wait for admission all the time",
        "Add a replica, or raise --max-num-seqs; GET /diagnosis names the bottleneck.",
    ),
    Alert(
        "OctavoRejects",
        "sum by (instance) (rate(octavo:admission_rejections_total[5m])) > 0.1",
        5,
        "warning",
        "requests get a 429 because the queue is full",
        "Add a replica; clients see Retry-After.",
    ),
    Alert(
        "OctavoServerErrors",
        f"{_FAILED} / {_RESPONSES.format('')} > 0.01",
        5,
        "critical",
        "more than one of a hundred responses is a 5xx",
        "The log has the cause of each 500 with the id of its request.",
    ),
    Alert(
        "OctavoSlowFirstToken",
        f"{_TTFT.format('time_to_first_token_seconds')} > 10",
        10,
        "warning",
        "one of a hundred requests waits more than 10 s for its first token",
        "GET /v1/requests/ID/explain says where the time of a request went.",
    ),
    Alert(
        "OctavoKvPressure",
        "octavo:kv_cache_usage_perc > 0.95 and on (instance, model_name, engine) "
        'rate(octavo:preemptions_by_reason_total{reason="blocks"}[5m]) > 0.1',
        10,
        "warning",
        "sequences are preempted because KV memory is used up",
        "Raise --kv-cache-memory-bytes, or lower --max-num-seqs.",
    ),
    Alert(
        "OctavoEventLoopLags",
        "histogram_quantile(0.99, sum by (le, instance) "
        "(rate(octavo:event_loop_lag_seconds_bucket[5m]))) > 0.25",
        5,
        "warning",
        "the front end answers late",
        "The machine has too few cores for the engine and the front end; lower --num-threads.",
    ),
    Alert(
        "OctavoJournalBroken",
        "octavo:journal_is_whole == 0",
        1,
        "critical",
        "the journal cannot be written",
        "Make room on its disk: requests would not survive the server now.",
    ),
    Alert(
        "OctavoFilesRunOut",
        "process_open_fds / process_max_fds > 0.9",
        5,
        "warning",
        "most file descriptors are in use",
        "Raise the limit (LimitNOFILE=), or look for clients that leave connections open.",
    ),
    Alert(
        "OctavoTracesDropped",
        "increase(octavo:traces_dropped_total[15m]) > 0",
        15,
        "info",
        "traces do not reach their collector",
        "The log names the reason; requests are not affected.",
    ),
)


def rules() -> str:
    """Return the file that Prometheus reads, in YAML."""
    lines = ["groups:", "  - name: octavo", "    rules:"]
    for alert in ALERTS:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {_quoted(alert.expression)}",
            f"        for: {alert.minutes}m",
            "        labels:",
            f"          severity: {alert.severity}",
            "        annotations:",
            f"          summary: {_quoted('{{ $labels.instance }}: ' + alert.summary)}",
            f"          description: {_quoted(alert.action)}",
        ]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Return a YAML text between single quotes."""
    return "'" + text.replace("'", "''") + "'"
