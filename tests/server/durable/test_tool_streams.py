"""A stream with reasoning and calls continues behind every event, with the same message."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.server.durable.make import Gate, durable, in_loop, received, step_by_step
from tests.server.openai.scripted import (
    AGENT,
    MESSAGES,
    PATH,
    ROOM,
    TOOLS,
    Script,
    make_files,
    put_together,
)

BODY: dict[str, Any] = {"messages": MESSAGES, "tools": TOOLS, "stream": True}
WAYS: dict[str, dict[str, Any]] = {
    "calls": {},
    "without reasoning": {"include_reasoning": False},
    "usage": {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
    "beside": {"return_token_ids": True, "logprobs": True},
    "required": {"tool_choice": "required"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_stepwise", [pytest.param(True, marks=pytest.mark.slow), False])
@in_loop
async def test_the_message_is_the_same_wherever_it_continues(
    tmp_path: Path, way: str, is_stepwise: bool
) -> None:
    """Events come one step at a time, or several tokens at once."""
    directory = make_files(tmp_path / "model")
    gate = Gate(0)
    runner = Script(directory, AGENT, gate.wait)
    async with durable(directory, tmp_path / "journal", runner, ROOM) as client:
        headers = {"x-request-id": "one"}
        body = {**BODY, **WAYS[way]}
        post = asyncio.ensure_future(client.post(PATH, json=body, headers=headers))
        if not is_stepwise:
            gate.open()
        response = await (step_by_step(client, gate, post) if is_stepwise else post)
        whole = received(response.text)
        assert whole.is_ended
        said = put_together([event for _, event in whole.events])
        assert [call["function"]["name"] for call in said[0]["tool_calls"]] == ["weather", "clock"]
        assert said[1] == "tool_calls"
        for num_known in range(0, len(whole.events) + 1, 1 + len(whole.events) // 50):
            known = whole.events[:num_known]
            last = next((each for each, _ in reversed(known) if each is not None), "0")
            rest = await client.get("/v1/streams/one", params={"from": last})
            assert rest.status_code == 200, rest.text
            events = [*known, *received(rest.text).events]
            assert put_together([event for _, event in events]) == said, num_known


@pytest.mark.slow
@in_loop
async def test_the_events_are_the_same_however_the_tokens_come(tmp_path: Path) -> None:
    """Each token has its own events and ids: one step at a time, several together, or repeated."""
    directory = make_files(tmp_path / "model")
    found: list[list[tuple[str | None, Any]]] = []
    for is_stepwise in (True, False):
        gate = Gate(0)
        runner = Script(directory, AGENT, gate.wait)
        async with durable(directory, tmp_path / f"{is_stepwise}", runner, ROOM) as client:
            headers = {"x-request-id": "one"}
            post = asyncio.ensure_future(client.post(PATH, json=BODY, headers=headers))
            if not is_stepwise:
                gate.open()
            response = await (step_by_step(client, gate, post) if is_stepwise else post)
            again = await client.get("/v1/streams/one")
            for each in (response, again):
                events = received(each.text).events
                found.append([(number, event["choices"]) for number, event in events])
    assert any("-" in (number or "") for number, _ in found[0])
    assert all(each == found[0] for each in found)
