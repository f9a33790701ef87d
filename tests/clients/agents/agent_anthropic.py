"""anthropic: an agent that thinks and calls tools, whole, in streams, sync and async; errors."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import anthropic

URL, KEY = sys.argv[1:3]
QUESTION: Any = {"role": "user", "content": "How warm is it in Oslo?"}
RESULTS = {"weather": "3 degrees", "clock": "noon"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"name": "weather", "description": "The weather of a city.", "input_schema": CITY},
    {"name": "clock", "input_schema": {"type": "object", "properties": {}}},
]
COMMON: dict[str, Any] = {"model": "tiny", "max_tokens": 300, "tools": TOOLS}
OPTIONS: dict[str, Any] = {"base_url": URL, "max_retries": 0, "timeout": 60}


def check_calls(message: Any) -> list[Any]:
    """Check a message of thought, text and calls; return the conversation with the results."""
    assert message.stop_reason == "tool_use"
    thinking, text, *calls = message.content
    assert (thinking.type, thinking.thinking.strip()) == ("thinking", "I need the weather.")
    assert (text.type, text.text.strip()) == ("text", "I look.")
    assert [(call.name, call.input) for call in calls] == [
        ("weather", {"city": "Oslo"}),
        ("clock", {}),
    ]
    results = [
        {"type": "tool_result", "tool_use_id": call.id, "content": RESULTS[call.name]}
        for call in calls
    ]
    return [
        QUESTION,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": results},
    ]


def check_answer(message: Any) -> None:
    """Check the message at the end."""
    assert message.stop_reason == "end_turn"
    assert message.content[-1].text.strip() == "It is 3 degrees in Oslo."
    assert message.usage.output_tokens > 0


def use_streams(client: Any) -> None:
    """Hold the conversation in streams, and check the events' own sums."""
    with client.messages.stream(**COMMON, messages=[QUESTION]) as stream:
        parts: dict[int, str] = {}
        for event in stream:
            if event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                parts[event.index] = parts.get(event.index, "") + event.delta.partial_json
        messages = check_calls(stream.get_final_message())
    assert json.loads(parts[2]) == {"city": "Oslo"}
    with client.messages.stream(**COMMON, messages=messages) as stream:
        assert "".join(stream.text_stream).strip() == "It is 3 degrees in Oslo."
        check_answer(stream.get_final_message())


def refused(kind: type[anthropic.APIStatusError], client: Any, **fields: Any) -> None:
    """Check the error of a request, streamed or not."""
    for stream in (False, True):
        try:
            client.messages.create(**fields, stream=stream)
        except kind as error:
            found: Any = error.body
        else:
            raise AssertionError(f"{kind.__name__} was expected")
        assert found["type"] == "error", found


async def use_async() -> None:
    """Hold the conversation with the asynchronous client."""
    async with anthropic.AsyncAnthropic(**OPTIONS, api_key=KEY) as client:
        messages = check_calls(await client.messages.create(**COMMON, messages=[QUESTION]))
        async with client.messages.stream(**COMMON, messages=messages) as stream:
            check_answer(await stream.get_final_message())


def main() -> None:
    """Run all checks of this client."""
    with anthropic.Anthropic(**OPTIONS, api_key=KEY) as client:
        messages = check_calls(client.messages.create(**COMMON, messages=[QUESTION]))
        check_answer(client.messages.create(**COMMON, messages=messages))
        use_streams(client)
        asyncio.run(use_async())
        counted: dict[str, Any] = {"model": "tiny", "messages": messages}
        alone = client.messages.count_tokens(**counted).input_tokens
        assert 0 < alone < client.messages.count_tokens(**counted, tools=TOOLS).input_tokens
        (model,) = client.models.list()
        assert model.id == "tiny"
        wrong: Any = {
            "model": "tiny",
            "max_tokens": 9,
            "messages": [{"role": "user", "content": []}],
        }
        refused(anthropic.BadRequestError, client, **wrong, stop_sequences=[""])
        refused(anthropic.NotFoundError, client, **{**COMMON, "model": "x"}, messages=[QUESTION])
    with anthropic.Anthropic(**OPTIONS, api_key="wrong-key") as stranger:
        refused(anthropic.AuthenticationError, stranger, **COMMON, messages=[QUESTION])
    print("all is well")


main()
