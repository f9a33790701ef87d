"""The generic format of calls: every dialect, with a template that knows no tools."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.engine import FakeEngine
from tests.server.make import Client
from tests.server.openai.scripted import (
    CLOCK,
    MESSAGES,
    OSLO,
    PATH,
    TOOLS,
    WEATHER,
    Script,
    called,
    message_of,
    writing,
)

PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endfor %}"
NAMED = {"type": "function", "function": {"name": "weather"}}
OSLO_CALL = {"name": "weather", "arguments": '{"city": "Oslo"}'}
PAST: list[dict[str, Any]] = [
    {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "function": OSLO_CALL}]},
    {"role": "tool", "tool_call_id": "a", "content": "3 degrees"},
]


def run(
    directory: Path,
    text: str,
    test: Callable[[Client], Awaitable[None]],
    template: str = PLAIN,
    **options: Any,
) -> None:
    """Run a test with a client of a server whose model writes this text."""

    async def main() -> None:
        async with writing(directory, text, template=template, **options) as client:
            await test(client)

    asyncio.run(main())


async def prompt_of(client: Client, **fields: Any) -> str:
    """Return the prompt of a chat."""
    body = {"messages": MESSAGES, **fields}
    tokens = (await client.post("/tokenize", json=body)).json()["tokens"]
    return str((await client.post("/detokenize", json={"tokens": tokens})).json()["prompt"])


def grammar_of(client: Client) -> str:
    """Return the grammar that the engine has got last."""
    engine = client.server.llm
    assert isinstance(engine, FakeEngine)
    assert isinstance(engine.runner, Script)
    return engine.runner.grammars[-1]


@pytest.mark.parametrize("is_special", [True, False])
def test_calls_are_read_and_written_in_every_stream(tmp_path: Path, is_special: bool) -> None:
    async def test(client: Client) -> None:
        message, finish = await message_of(client, tools=TOOLS)
        assert (message["content"], finish) == ("I look.", "tool_calls")
        names = [call["function"]["name"] for call in message["tool_calls"]]
        assert names == ["weather", "clock"]
        one, _ = await message_of(client, tools=TOOLS, parallel_tool_calls=False)
        assert [call["function"]["name"] for call in one["tool_calls"]] == ["weather"]

    text = f"I look.\n{OSLO}\n{called('clock', {})}\n"
    run(tmp_path, text, test, is_special=is_special)


def test_the_prompt_shows_tools_calls_and_results_as_text(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for kwargs in ({}, {"chat_template_kwargs": {"unused": ["x"] * 20_000}}):  # in a worker
            text = await prompt_of(client, messages=[*MESSAGES, *PAST], tools=TOOLS, **kwargs)
            assert text.startswith("<|im_start|>system\nThese functions are available.")
            assert json.dumps(WEATHER["function"]) in text
            assert f"<|im_start|>assistant\n{OSLO}<|im_end|>" in text
            assert text.endswith(
                '<|im_start|>user\n<tool_response>\n{"name": "weather", "content": "3 degrees"}\n'
                "</tool_response><|im_end|>"
            )
        assert "These functions" not in await prompt_of(client)
        usages = []
        for fields in ({}, {"tools": TOOLS, "tool_choice": "none"}):
            answer = await client.post(PATH, json={"messages": MESSAGES, **fields})
            usages.append(answer.json()["usage"]["prompt_tokens"])
        assert usages[0] == usages[1]

    run(tmp_path, "Hello.", test)


def test_every_choice_is_a_grammar(tmp_path: Path) -> None:
    """A call is constrained where the model may answer with text too, of strict tools or not."""
    asked: dict[str, tuple[dict[str, Any], bool, bool]] = {  # with weather's and clock's calls
        "auto": ({}, True, True),
        "required": ({"tool_choice": "required"}, True, True),
        "named": ({"tool_choice": NAMED}, True, False),
        "allowed": (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [NAMED]}}},
            True,
            False,
        ),
        "none": ({"tool_choice": "none"}, False, False),
        "shape": ({"response_format": {"type": "json_object"}}, True, True),
    }

    async def test(client: Client) -> None:
        for name, (fields, has_weather, has_clock) in asked.items():
            body = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 1, **fields}
            response = await client.post(PATH, json=body)
            assert response.status_code == 200, (name, response.text)
            grammar = grammar_of(client)
            assert ("weather" in grammar, "clock" in grammar) == (has_weather, has_clock), name
            assert ('"integer"' in grammar) == has_weather, f"{name}: by the tool's schema"

    run(tmp_path, OSLO, test)


def test_a_schema_that_cannot_be_enforced_is_named(tmp_path: Path) -> None:
    """A strict tool, or one that must be called, is refused for it."""
    unknown = {"type": "object", "properties": {"a": {"type": "string", "pattern": r"(a)\1"}}}
    nested: dict[str, Any] = {"type": "integer"}
    for _ in range(80):
        nested = {"type": "array", "items": nested}
    deep = {"type": "object", "properties": {"a": nested}}

    async def test(client: Client) -> None:
        for schema, choice, status in (
            (unknown, "auto", 200),
            (unknown, "required", 200),
            (deep, "auto", 200),
            (deep, "required", 400),
        ):
            tool = {"function": {"name": "f", "parameters": schema}}
            body = {"messages": MESSAGES, "tools": [CLOCK, tool], "tool_choice": choice}
            response = await client.post(PATH, json={**body, "max_tokens": 1})
            assert response.status_code == status, response.text
            where = "tools[1].function.parameters.properties.a"
            if status == 400:
                assert response.json()["error"]["param"].startswith(where)
            else:
                (warning,) = response.json()["warnings"]
                assert warning.startswith(where)
        strict = {"function": {"name": "f", "parameters": unknown, "strict": True}}
        response = await client.post(PATH, json={"messages": MESSAGES, "tools": [strict]})
        assert response.json()["error"]["param"].endswith("properties.a.pattern")

    run(tmp_path, OSLO, test)


def test_the_generic_format_can_be_asked_for(tmp_path: Path) -> None:
    """A model that has a format of its own then is shown the tools as text."""
    qwen = (Path(__file__).parents[2] / "text/chat/templates/qwen3.jinja").read_text("utf-8")

    async def test(client: Client) -> None:
        assert "These functions are available." in await prompt_of(client, tools=TOOLS)
        message, _ = await message_of(client, tools=TOOLS)
        assert message["tool_calls"]
        assert "weather" in grammar_of(client)

    run(tmp_path, OSLO, test, template=qwen, tool_call_parser="generic")


def test_a_named_format_is_kept_where_the_template_shows_no_tools(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        text = await prompt_of(client, tools=TOOLS)
        assert 'functools[{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}]' in text
        message, _ = await message_of(client, tools=TOOLS)
        assert message["tool_calls"][0]["function"]["name"] == "clock"
        assert grammar_of(client) == "", "it is a model's own, which the model knows"

    answer = 'functools[{"name": "clock", "arguments": {}}]'
    run(tmp_path, answer, test, tool_call_parser="phi4_mini_json")


def test_a_model_thinks_before_it_calls(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        message, _ = await message_of(client, tools=TOOLS, reasoning_effort="low")
        assert message["reasoning"] == "Oslo is far."
        assert message["tool_calls"][0]["function"]["name"] == "weather"

    thinks = f"<think>\nOslo is far.\n</think>\n\n{OSLO}"
    run(tmp_path, thinks, test, reasoning_parser="deepseek_r1")
