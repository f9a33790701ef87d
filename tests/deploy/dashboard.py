"""The Grafana dashboard: a panel for each metric of the catalogue, in rows by what it is about."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from tests.deploy.catalogue import Entry

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_QUANTILES = (0.5, 0.9, 0.99)
# The rows, each with the words by which a name belongs to it; the first that fits.
ROWS: Mapping[str, tuple[str, ...]] = {
    "Latency": ("time_to_first", "inter_token", "e2e_", "_time_per_output", "request_", "held"),
    "Traffic": ("tokens", "http_responses", "rejected", "rejections", "unknown_fields"),
    "Queue and fairness": ("queue_", "key_", "waiting", "running", "preemptions", "ready"),
    "KV cache": ("kv_cache", "prefix_cache", "cache_config"),
    "Speculation": ("spec_decode",),
    "Engines": ("engine", "paced", "deferred", "step", "lora"),
    "What is kept": ("journal", "responses_"),
    "Server": ("",),
}
_WIDTH, _HEIGHT, _COLUMNS = 8, 7, 3


def dashboard(catalogue: Mapping[str, Entry]) -> str:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for title, words in ROWS.items():
        entries = [each for each in catalogue.values() if _row_of(each.name) == title]
        assert entries, f"no metric has one of {words}"
        panels.append(_row(title, top))
        for index, entry in enumerate(entries):
            line, column = divmod(index, _COLUMNS)
            place = {
                "x": column * _WIDTH,
                "y": top + 1 + line * _HEIGHT,
                "w": _WIDTH,
                "h": _HEIGHT,
            }
            panels.append(_panel(entry, place))
        top += 1 + -(-len(entries) // _COLUMNS) * _HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    return json.dumps(_whole(panels), indent=1) + "\n"


def _row_of(name: str) -> str:
    return next(title for title, words in ROWS.items() if any(word in name for word in words))


def _row(title: str, top: int) -> dict[str, Any]:
    place = {"x": 0, "y": top, "w": 24, "h": 1}
    return {"type": "row", "title": title, "gridPos": place, "collapsed": False, "panels": []}


def _panel(entry: Entry, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "datasource": SOURCE,
            "expr": expression,
            "legendFormat": legend,
            "refId": chr(ord("A") + index),
            "exemplar": entry.kind == "histogram",
        }
        for index, (expression, legend) in enumerate(_expressions(entry))
    ]
    return {
        "type": "timeseries",
        "title": entry.name.partition(":")[2] or entry.name,
        "description": entry.meaning,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": _unit(entry), "min": 0}, "overrides": []},
        "targets": targets,
    }


def _expressions(entry: Entry) -> Iterator[tuple[str, str]]:
    """Yield what a panel shows, with the legend of each."""
    model = ',model_name=~"$model_name"' if entry.has_model else ""
    of = f'{{instance=~"$instance"{model}}}'
    if entry.kind == "gauge":
        yield f"{entry.name}{of}", "__auto"
    elif entry.kind == "counter":
        yield f"sum without (pod) (rate({entry.name}_total{of}[$__rate_interval]))", "__auto"
    else:
        rate = f"sum by (le) (rate({entry.name}_bucket{of}[$__rate_interval]))"
        for quantile in _QUANTILES:
            yield f"histogram_quantile({quantile}, {rate})", f"p{quantile * 100:g}"
        sums = [f"sum(rate({entry.name}{end}{of}[$__rate_interval]))" for end in ("_sum", "_count")]
        yield " / ".join(sums), "mean"


def _unit(entry: Entry) -> str:
    name, is_rate = entry.name, entry.kind == "counter"
    if "seconds" in name:
        return "percentunit" if is_rate else "s"
    if "bytes" in name:
        return "Bps" if is_rate else "bytes"
    return "percentunit" if name.endswith("_perc") else "ops" if is_rate else "short"


def _whole(panels: list[dict[str, Any]]) -> dict[str, Any]:
    variables = [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        *(
            {
                "name": label,
                "type": "query",
                "datasource": SOURCE,
                "query": f"label_values(octavo:ready, {label})",
                "refresh": 2,
                "multi": True,
                "includeAll": True,
                "allValue": ".*",
            }
            for label in ("instance", "model_name")
        ),
    ]
    return {
        "title": "Octavo",
        "uid": "octavo",
        "tags": ["octavo"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": variables},
        "panels": panels,
    }
