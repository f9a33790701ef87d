"""The dashboard and the alerts name metrics that exist, in expressions that Prometheus parses."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

import pytest
import yaml  # type: ignore[import-untyped]

from tests.deploy.catalogue import Entry, catalogue
from tests.deploy.generate import ROOT, made

# The series that vLLM's own dashboard (examples/observability/prometheus_grafana) reads.
VLLM_SERIES = (
    *("e2e_request_latency_seconds_bucket", "e2e_request_latency_seconds_sum"),
    *("e2e_request_latency_seconds_count", "prompt_tokens_total", "generation_tokens_total"),
    *("inter_token_latency_seconds_bucket", "inter_token_latency_seconds_sum"),
    *("inter_token_latency_seconds_count", "num_requests_running", "num_requests_waiting"),
    *("time_to_first_token_seconds_bucket", "time_to_first_token_seconds_sum"),
    *("time_to_first_token_seconds_count", "kv_cache_usage_perc", "request_prompt_tokens_bucket"),
    *("request_generation_tokens_bucket", "request_success_total"),
    *("request_queue_time_seconds_sum", "request_prefill_time_seconds_sum"),
    *("request_decode_time_seconds_sum", "request_max_num_generation_tokens_sum"),
)
_NAME = re.compile(r"(?:octavo:|process_)[a-z0-9_]+")


@pytest.fixture(scope="module")
def known() -> dict[str, Entry]:
    return catalogue()


def series(entries: Mapping[str, Entry]) -> set[str]:
    return {name for entry in entries.values() for name in entry.series}


def expressions() -> Iterator[str]:
    """Yield the expressions of the checked-in files, as Prometheus gets them."""
    board = json.loads((ROOT / "grafana" / "octavo.json").read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"].replace("$__rate_interval", "5m")
    rules = yaml.safe_load((ROOT / "prometheus" / "alerts.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def test_the_files_are_those_of_the_catalogue() -> None:
    for path, text in made().items():
        assert path.read_text("utf-8") == text, "run: python -m tests.deploy.generate --write"


def test_each_name_is_that_of_a_series(known: dict[str, Entry]) -> None:
    named = {name for expression in expressions() for name in _NAME.findall(expression)}
    assert named - series(known) == set()


def test_each_metric_has_a_panel(known: dict[str, Entry]) -> None:
    named = {name for expression in expressions() for name in _NAME.findall(expression)}
    assert [entry.name for entry in known.values() if not named & set(entry.series)] == []


def test_vllms_own_dashboard_finds_its_series() -> None:
    assert {f"vllm:{name}" for name in VLLM_SERIES} - series(catalogue("vllm")) == set()


def test_prometheus_parses_each_expression() -> None:
    parser = pytest.importorskip("promql_parser")
    for expression in expressions():
        parser.parse(expression)
    with pytest.raises(Exception, match=r"unclosed|unexpected|invalid"):
        parser.parse("sum(rate(octavo:ready[5m])")


def test_a_rule_has_what_prometheus_and_people_need() -> None:
    rules = yaml.safe_load((ROOT / "prometheus" / "alerts.yaml").read_text())
    (group,) = rules["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(set(names)) == len(names)
    for rule in group["rules"]:
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning", "info")
        assert set(rule["annotations"]) == {"summary", "description"}
