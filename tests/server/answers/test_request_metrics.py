"""The times of a request are in its answer if the server is started so, on each route."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.core.stats import RequestStats
from octavo.observe.explain import Record
from octavo.observe.request_timing import RequestTiming, timing_of
from tests.server.durable.make import Gate, durable, received, step_by_step
from tests.server.make import Client, serving
from tests.server.openai.calls import streamed

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
COMPLETION = {"prompt": "Hello", "max_tokens": 4}
TOKENS = {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 4}}
BOTH = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}
PATHS = {
    **BOTH,
    "/inference/v1/generate": TOKENS,
    "/v1/responses": {"input": "Hello", "max_output_tokens": 4},
}
NAMES = {
    *("time_to_first_token_ms", "generation_time_ms", "queue_time_ms"),
    *("mean_itl_ms", "tokens_per_second"),
}
USAGE = {"stream_options": {"include_usage": True}}


def check(metrics: Any, names: set[str] = NAMES) -> None:
    assert metrics.keys() == names
    assert all(value >= 0 for value in metrics.values())


@pytest.mark.parametrize("path", PATHS)
def test_a_whole_answer_has_them(directory: Path, path: str) -> None:
    async def main() -> None:
        async with serving(directory, enable_per_request_metrics=True) as client:
            check((await client.post(path, json=PATHS[path])).json()["metrics"])
        async with serving(directory) as client:
            assert "metrics" not in (await client.post(path, json=PATHS[path])).json()

    asyncio.run(main())


@pytest.mark.parametrize("path", BOTH)
def test_a_stream_has_them_beside_the_usage_at_its_end(directory: Path, path: str) -> None:
    async def main() -> None:
        async with serving(directory, enable_per_request_metrics=True) as client:
            *chunks, last = await streamed(client, path, **BOTH[path], **USAGE)
            assert not any("metrics" in chunk for chunk in chunks)
            assert last["choices"] == []
            check(last["metrics"])
            one = {**BOTH[path], "max_tokens": 1}
            *_, last = await streamed(client, path, **one, **USAGE)
            check(last["metrics"], NAMES - {"mean_itl_ms"})
            plain = await streamed(client, path, **BOTH[path])
            assert not any("metrics" in chunk for chunk in plain)

    asyncio.run(main())


@pytest.mark.parametrize("path", BOTH)
def test_several_answers_have_none(directory: Path, path: str) -> None:
    async def main() -> None:
        async with serving(directory, enable_per_request_metrics=True) as client:
            two = {**BOTH[path], "n": 2, "temperature": 1}
            assert "metrics" not in (await client.post(path, json=two)).json()
            *_, last = await streamed(client, path, **two, **USAGE)
            assert "usage" in last
            assert "metrics" not in last
            if path == "/v1/completions":
                prompts = {"prompt": ["a", "b"], "max_tokens": 4}
                assert "metrics" not in (await client.post(path, json=prompts)).json()

    asyncio.run(main())


def test_a_stream_that_continues_after_the_servers_end_has_none(
    directory: Path, tmp_path: Path
) -> None:
    """The times of the attempt before are not known."""
    body = {**CHAT, **USAGE, "stream": True}

    async def ask(client: Client, gate: Gate) -> Any:
        post = client.post("/v1/chat/completions", json=body, headers={"x-request-id": "one"})
        return received((await step_by_step(client, gate, asyncio.ensure_future(post))).text)

    async def main() -> None:
        gate = Gate(0)
        journal = tmp_path / "journal"
        options: dict[str, Any] = {"enable_per_request_metrics": True}
        async with durable(directory, journal, gate.runner, **options) as client:
            check((await ask(client, gate)).events[-1][1]["metrics"])
        async with durable(directory, journal, **options) as client:
            answer = await client.get("/v1/streams/one", params={"from": "0"})
            again = received(answer.text)
            assert "usage" in again.events[-1][1]
            assert "metrics" not in again.events[-1][1]

    asyncio.run(main())


def test_each_time_is_the_one_of_its_name() -> None:
    record = Record("one", "", 0.0, prepared_at=1.0)
    assert timing_of(record, 3) is None
    record.stats = RequestStats(0.5, 4, 1.25, first_planned_at=1.5)
    record.stats.first_token_at, record.stats.finished_at = 2.0, 4.0
    assert timing_of(record, 5) == RequestTiming(
        time_to_first_token_ms=500.0,
        generation_time_ms=2000.0,
        queue_time_ms=500.0,
        mean_itl_ms=500.0,
        tokens_per_second=2.0,
    )
    record.stats.first_token_at = None
    assert timing_of(record, 0) == RequestTiming(queue_time_ms=500.0, tokens_per_second=0.0)
    record.stats.first_planned_at = record.stats.finished_at = None
    assert timing_of(record, 0) == RequestTiming()
