"""llama-server's metrics under its names, beside ours."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families as families

from tests.server.durable.make import in_loop
from tests.server.make import Client, serving

NAMES = "llamacpp"


async def read(client: Client) -> dict[str, float]:
    """Return the values under llama-server's names, which have no labels."""
    response = await client.get("/metrics")
    assert int(response.headers["process-start-time-unix"]) > 0
    found: dict[str, float] = {}
    for family in families(response.text):
        for sample in family.samples:
            name = sample.name.partition("llamacpp:")[2]
            if name:
                assert not sample.labels
                found[name] = sample.value
    return found


@in_loop
async def test_what_requests_cost_is_counted_under_llama_servers_names(directory: Path) -> None:
    async with serving(directory, metrics_names=NAMES) as client:
        assert not any((await read(client)).values())
        body = {"prompt": "the quick brown fox", "n_predict": 5, "temperature": 0}
        times = [(await client.post("/completion", json=body)).json()["timings"] for _ in range(2)]
        now = await read(client)
        assert now["prompt_tokens_total"] == sum(each["prompt_n"] for each in times)
        assert now["prompt_tokens_cached_total"] == sum(each["cache_n"] for each in times) > 0
        assert now["tokens_predicted_total"] == 10
        # Prometheus' parser adds the suffix that llama-server leaves out.
        assert now["n_tokens_max_total"] == times[0]["prompt_n"] + 5
        assert now["n_decode_total"] > 0
        assert now["n_busy_slots_per_decode"] > 0
        assert now["predicted_tokens_seconds"] > 0
        assert now["prompt_tokens_seconds"] > 0
        again = await read(client)  # nothing has run since
        assert again["predicted_tokens_seconds"] == again["prompt_tokens_seconds"] == 0
        assert again["tokens_predicted_total"] == 10


@in_loop
async def test_both_formats_are_valid_and_ours_are_there_too(directory: Path) -> None:
    async with serving(directory, metrics_names=NAMES) as client:
        text = (await client.get("/metrics")).text
        assert "# TYPE llamacpp:n_tokens_max counter" in text
        assert "octavo:generation_tokens_total" in text
        accept = {"accept": "application/openmetrics-text"}
        text = (await client.get("/metrics", headers=accept)).text
        found = openmetrics(text)  # type: ignore[no-untyped-call]
        kinds = {each.name: each.type for each in found}
        assert kinds["llamacpp:n_tokens_max"] == "unknown"
        assert kinds["llamacpp:prompt_tokens"] == "counter"
    async with serving(directory) as client:
        response = await client.get("/metrics")
        assert "llamacpp:" not in response.text
        assert "process-start-time-unix" not in response.headers
