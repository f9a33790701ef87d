"""What llama-server's answers say beside the text: times, the progress of a prompt, the prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from octavo.core.stats import PrefillChunk, RequestStats
from octavo.dialects.common.timings import ProgressReader, timings_of
from tests.server.durable.make import in_loop
from tests.server.engine import FakeEngine
from tests.server.make import Client, serving

PROMPT = "the quick brown fox jumps over the lazy dog " * 2
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
PATHS = ("/chat/completions", "/v1/chat/completions")


async def events_of(client: Client, path: str, body: dict[str, Any]) -> list[Any]:
    """Return the events of a stream, without the mark of its end."""
    response = await client.post(path, json={**body, "stream": True})
    assert response.status_code == 200, response.text
    frames = [each.removeprefix("data: ") for each in response.text.split("\n\n") if each]
    return [json.loads(each) for each in frames if each != "[DONE]"]


def check_progress(events: list[Any]) -> list[Any]:
    """Return the progress that events report, once its rules are checked."""
    found = [each["prompt_progress"] for each in events if "prompt_progress" in each]
    done = [each["processed"] for each in found]
    assert done == sorted(set(done))
    assert found[0]["processed"] == found[0]["cache"]
    assert done[-1] == found[-1]["total"]
    return found


@in_loop
async def test_a_stream_reports_each_part_of_its_prompt_if_asked(directory: Path) -> None:
    engine = FakeEngine(directory, max_num_batched_tokens=16)
    async with serving(directory, engine) as client:
        body = {"prompt": PROMPT, "n_predict": 4, "return_progress": True}
        events = await events_of(client, "/completion", {**body, "timings_per_token": True})
        found = check_progress(events)
        assert (found[0]["processed"], found[1]["processed"]) == (0, 16)
        assert len(found) == 1 + -(-found[0]["total"] // 16)
        assert all("timings" in each for each in events)
        assert events[0]["timings"]["prompt_n"] == events[0]["timings"]["predicted_n"] == 0
        cached = check_progress(await events_of(client, "/completion", body))
        assert cached[0]["cache"] > 0
        assert len(cached) < len(found)
        plain = await events_of(client, "/completion", {**body, "return_progress": False})
        assert not any("prompt_progress" in each for each in plain)
        for path in PATHS:
            asked = {**CHAT, "return_progress": True, "cache_salt": path}
            assert len(check_progress(await events_of(client, path, asked))) > 2
        histogram = client.server.metrics.first_token
        assert histogram.count == 5  # one a request: what is said of a prompt is no first token


@in_loop
async def test_a_recorded_stream_reports_its_prompt_too(directory: Path, tmp_path: Path) -> None:
    engine = FakeEngine(directory, max_num_batched_tokens=16)
    async with serving(directory, engine) as client:
        events = await events_of(client, PATHS[1], {**CHAT, "return_progress": True})
        text = "".join(each["choices"][0]["delta"].get("content") or "" for each in events)
        plain = (await client.post(PATHS[1], json={**CHAT, "temperature": 0})).json()
        assert text
        assert "timings" not in plain


@in_loop
async def test_chats_have_times_at_llama_cpps_path_and_where_they_are_asked_for(
    directory: Path,
) -> None:
    async with serving(directory) as client:
        whole = (await client.post(PATHS[0], json=CHAT)).json()
        assert whole["timings"]["predicted_n"] == 4
        assert "__verbose" not in whole
        asked = {**CHAT, "timings_per_token": True}
        assert (await client.post(PATHS[1], json=asked)).json()["timings"]["predicted_n"] == 4
        first, *others = await events_of(client, PATHS[0], CHAT)
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
        assert "timings" not in first
        assert others[-1]["timings"]["predicted_n"] == 4
        first, *others = await events_of(client, PATHS[1], asked)
        assert first["choices"][0]["delta"]["content"] == ""
        assert all("timings" in each for each in others)
        usage = {**CHAT, "stream_options": {"include_usage": True}}
        assert "timings" in (await events_of(client, PATHS[0], usage))[-1]
        verbose = {**CHAT, "verbose": True}
        for path in PATHS:
            said = (await client.post(path, json=verbose)).json()["__verbose"]
            assert PROMPT.strip() in said["prompt"]
            assert said["tokens_predicted"] == 4


@in_loop
async def test_an_answer_at_the_end_is_continued_at_llama_cpps_path(directory: Path) -> None:
    user, answer = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Wh"}
    body: dict[str, Any] = {"max_tokens": 2, "verbose": True, "messages": [user, answer]}
    async with serving(directory) as client:

        async def prompt_of(path: str, **fields: Any) -> str:
            response = await client.post(path, json={**body, **fields})
            made: str = response.json()["__verbose"]["prompt"]
            return made

        explicit = await prompt_of(PATHS[1], continue_final_message=True)
        explicit_new = await prompt_of(PATHS[1])
        assert await prompt_of(PATHS[0]) == explicit
        assert await prompt_of(PATHS[0], add_generation_prompt=True) == explicit_new
        assert explicit != explicit_new
        two = await client.post(PATHS[0], json={**body, "messages": [user, answer, answer]})
        assert (two.status_code, two.json()["error"]["param"]) == (400, "messages")


@in_loop
async def test_the_servers_seed_is_that_of_each_request(directory: Path) -> None:
    async with serving(directory) as client:
        body = {"prompt": PROMPT, "n_predict": 8, "temperature": 1}
        defaults = (await client.get("/props")).json()["default_generation_settings"]["params"]
        assert defaults["seed"] == 2**32 - 1
        drawn = [(await client.post("/completion", json=body)).json() for _ in range(2)]
        assert drawn[0]["content"] != drawn[1]["content"]
    engine = FakeEngine(directory)
    engine.model.seed = 42
    async with serving(directory, engine) as client:
        same = [(await client.post("/completion", json=body)).json() for _ in range(2)]
        assert same[0]["content"] == same[1]["content"]
        assert same[0]["generation_settings"]["seed"] == 42
        other = (await client.post("/completion", json={**body, "seed": 7})).json()
        assert other["content"] != same[0]["content"]
        random = {**body, "seed": -1}
        drawn = [(await client.post("/completion", json=random)).json() for _ in range(2)]
        assert drawn[0]["content"] != drawn[1]["content"]


def test_progress_is_told_once_and_never_goes_back() -> None:
    stats = RequestStats(arrival=0.0, num_prompt_tokens=40, added_at=1.0, num_cached_tokens=8)
    reader = ProgressReader()
    assert not [*reader.new(stats)]
    stats.chunks.append(PrefillChunk(8, 24, 1.0, 3.0))
    told = [each for each, _ in reader.new(stats)]
    assert [(each.processed, each.time_ms) for each in told] == [(8, 0.0), (24, 2000.0)]
    stats.chunks += [PrefillChunk(0, 16, 4.0, 5.0), PrefillChunk(16, 41, 5.0, 6.0)]  # preempted
    ((last, times),) = reader.new(stats)
    assert (last.processed, last.total, last.cache) == (40, 40, 8)
    assert (times.prompt_n, times.predicted_n) == (32, 0)
    assert not [*reader.new(stats)]


def test_times_are_numbers_whatever_is_known() -> None:
    nothing = timings_of(None, 5, 5, 1, 9.0)
    assert (nothing.prompt_n, nothing.prompt_per_second, nothing.predicted_per_second) == (0, 0, 0)
    stats = RequestStats(
        arrival=0.0,
        num_prompt_tokens=5,
        added_at=0.5,
        first_planned_at=1.0,
        first_token_at=2.0,
        num_drafts=6,
        num_accepted_drafts=2,
    )
    running = timings_of(stats, 5, 1, 5, now=4.0)
    assert (running.prompt_ms, running.prompt_per_token_ms) == (1000.0, 250.0)
    assert (running.predicted_ms, running.predicted_per_second) == (2000.0, 2.0)
    assert (running.draft_n, running.draft_n_accepted) == (6, 2)
