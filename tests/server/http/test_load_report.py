"""A request that asks for the load of the server gets it in a header of its response."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.server.durable.make import in_loop
from tests.server.make import serving

NAME = "endpoint-load-metrics"
BODY: dict[str, Any] = {"prompt": "The quick", "max_tokens": 3}
NAMES = ["kv_cache_usage_perc", "num_requests_waiting"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["text", "TEXT", "json", "JSON"])
@in_loop
async def test_the_load_is_in_the_format_that_is_asked_for(
    directory: Path, kind: str, stream: bool
) -> None:
    async with serving(directory) as client:
        answer = await client.post(
            "/v1/completions",
            json={**BODY, "stream": stream},
            headers={f"{NAME}-format": kind},
        )
        found, _, report = answer.headers[NAME].partition(" ")
        assert found == kind.upper()
        if found == "JSON":
            load = json.loads(report)["named_metrics"]
        else:
            pairs = (each.removeprefix("named_metrics.").split("=") for each in report.split(", "))
            load = dict(pairs)
        assert list(load) == NAMES
        assert 0 <= float(load["kv_cache_usage_perc"]) <= 1
        assert float(load["num_requests_waiting"]) == 0


@in_loop
async def test_requests_that_wait_are_counted(directory: Path) -> None:
    async with serving(directory) as client:
        tickets = [client.server.admission.register("", 1) for _ in range(3)]
        answer = await client.post("/v1/completions", json=BODY, headers={f"{NAME}-format": "json"})
        for ticket in tickets:
            ticket.leave()
        load = json.loads(answer.headers[NAME].removeprefix("JSON "))["named_metrics"]
        assert load["num_requests_waiting"] == client.server.metrics.load()[NAMES[1]] + 3


@pytest.mark.parametrize("kind", ["", "bin", "text,json"])
@in_loop
async def test_other_requests_have_no_such_header(directory: Path, kind: str) -> None:
    async with serving(directory) as client:
        headers = {f"{NAME}-format": kind} if kind else {}
        answer = await client.post("/v1/completions", json=BODY, headers=headers)
        assert answer.status_code == 200
        assert NAME not in answer.headers
