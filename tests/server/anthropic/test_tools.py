"""Tools, reasoning and shapes in Anthropic's dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.anthropic.test_messages import PATH, assembled, events_of
from tests.server.make import Client, serving
from tests.server.openai.scripted import OSLO, Script, called, writing

WEATHER: dict[str, Any] = {
    "name": "weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
CLOCK: dict[str, Any] = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "How warm is it in Oslo?"}],
    "max_tokens": 300,
    "tools": [WEATHER, CLOCK],
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TEXT = f"<think>\nA tool knows.\n</think>\n\nI look.{OSLO}\n{called('clock', {})}"


def run(directory: Path, text: str, test: Callable[[Client], Awaitable[None]]) -> None:
    """Run a test with a client of a server whose model writes this text."""

    async def main() -> None:
        async with writing(directory, text) as client:
            await test(client)

    asyncio.run(main())


async def both(client: Client, **fields: Any) -> dict[str, Any]:
    """Return the message, whole and put together from a stream, which must be the same."""
    body = {**ASKED, **fields}
    answer = await client.post(PATH, json=body, headers={"x-request-id": "one"})
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    stream = await client.post(PATH, json={**body, "stream": True}, headers={"x-request-id": "one"})
    message = assembled(events_of(stream.text))
    names = ("id", "content", "stop_reason", "stop_sequence")
    assert [message[name] for name in names] == [whole[name] for name in names]
    return whole


def test_reasoning_text_and_calls_are_blocks_of_an_answer(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        message = await both(client)
        assert message["stop_reason"] == "tool_use"
        thinking, text, weather, clock = message["content"]
        assert (thinking["type"], thinking["thinking"].strip()) == ("thinking", "A tool knows.")
        assert text == {"type": "text", "text": "I look."}
        assert (weather["name"], weather["input"]) == ("weather", {"city": "Oslo"})
        assert (clock["name"], clock["input"]) == ("clock", {})
        assert weather["id"] != clock["id"]
        (_, _, alone) = (
            await both(client, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
        )["content"]
        assert alone["name"] == "weather"

    run(tmp_path, TEXT, test)


def test_past_calls_and_results_are_part_of_the_prompt(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        first = await both(client)
        results = [
            {"type": "tool_result", "tool_use_id": block["id"], "content": "sun"}
            for block in first["content"]
            if block["type"] == "tool_use"
        ]
        turns = [
            *ASKED["messages"],
            {"role": "assistant", "content": first["content"]},
            {"role": "user", "content": results},
        ]
        body = {"messages": turns, "tools": ASKED["tools"]}
        more = (await client.post(f"{PATH}/count_tokens", json=body)).json()["input_tokens"]
        body["messages"] = ASKED["messages"]
        less = (await client.post(f"{PATH}/count_tokens", json=body)).json()["input_tokens"]
        assert more > less + len(OSLO)

    run(tmp_path, TEXT, test)


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "weather"}])
def test_a_call_that_must_come_has_a_grammar(tmp_path: Path, choice: dict[str, Any]) -> None:
    async def test(client: Client) -> None:
        await both(client, tool_choice=choice, thinking={"type": "disabled"})
        runner = client.server.llm.runner  # type: ignore[attr-defined]
        assert isinstance(runner, Script)
        assert all("weather" in grammar for grammar in runner.grammars)

    run(tmp_path, OSLO, test)


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"tool_choice": {"type": "tool", "name": "radio"}}, "tool_choice.name"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tools": [], "tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tools": [{"name": "x y", "input_schema": {}}]}, "tools[0].name"),
        ({"tools": [{"name": "x"}]}, "tools[0].input_schema is missing"),
        (
            {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 5}]},
            "tools[0].type: 'web_search_20250305' is a tool that Anthropic's servers run",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"type": "strange"}}}},
            "output_config.format.schema",
        ),
        (
            {"output_format": {"type": "json_schema", "schema": {"uniqueItems": True}}},
            "output_format.schema",
        ),
        ({"output_format": {"schema": {}, "stritc": True}}, "unknown field 'output_format.stritc'"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, fields: dict[str, Any], place: str) -> None:
    async def test(client: Client) -> None:
        answer = await client.post(PATH, json={**ASKED, **fields})
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith(place)

    run(tmp_path, OSLO, test)


def test_tools_are_refused_where_no_calls_are_looked_for(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory, tool_call_parser="none") as client:
            answer = await client.post(PATH, json=ASKED)
            assert answer.status_code == 400
            assert "--tool-call-parser" in answer.json()["error"]["message"]

    asyncio.run(main())


def test_the_prompt_has_tools_as_that_of_a_chat(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        described = [
            {
                "type": "function",
                "function": {
                    "name": each["name"],
                    "parameters": each["input_schema"],
                    **{name: each[name] for name in ("description",) if name in each},
                },
            }
            for each in ASKED["tools"]
        ]
        body = {"messages": ASKED["messages"], "tools": described}
        chat = (await client.post("/v1/chat/completions", json=body)).json()
        counted = await client.post(
            f"{PATH}/count_tokens", json={"messages": ASKED["messages"], "tools": ASKED["tools"]}
        )
        assert counted.json()["input_tokens"] == chat["usage"]["prompt_tokens"]

    run(tmp_path, OSLO, test)
