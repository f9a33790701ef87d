"""cohere: an agent that thinks and calls tools, whole and in streams; errors."""

from __future__ import annotations

import sys
from typing import Any

import cohere
from cohere.core.api_error import ApiError

URL, KEY = sys.argv[1:3]
QUESTION: Any = {"role": "user", "content": "How warm is it in Oslo?"}
RESULTS = {"weather": "3 degrees", "clock": "noon"}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
NOTHING: dict[str, Any] = {"type": "object", "properties": {}}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "clock", "parameters": NOTHING}},
]
COMMON: dict[str, Any] = {"model": "tiny", "max_tokens": 300, "tools": TOOLS}


def streamed(client: cohere.ClientV2, messages: list[Any]) -> tuple[dict[str, Any], str]:
    """Return the message that a stream adds up to, and its end."""
    content: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for event in client.chat_stream(**COMMON, messages=messages):
        match event.type:
            case "content-start":
                assert event.index == len(content)
                content.append({"type": event.delta.message.content.type, "text": ""})
            case "content-delta":
                part = event.delta.message.content
                content[-1]["text"] += part.thinking or part.text or ""
            case "tool-call-start":
                call = event.delta.message.tool_calls
                assert event.index == len(calls)
                calls.append({"id": call.id, "name": call.function.name, "arguments": ""})
            case "tool-call-delta":
                calls[-1]["arguments"] += event.delta.message.tool_calls.function.arguments
            case "message-end":
                return {"content": content, "calls": calls}, event.delta.finish_reason
    raise AssertionError("the stream has no end")


def whole(client: cohere.ClientV2, messages: list[Any]) -> tuple[dict[str, Any], Any]:
    """Return the whole answer in the same form, and as the client has it."""
    answer = client.chat(**COMMON, messages=messages)
    content = [
        {"type": each.type, "text": each.thinking if each.type == "thinking" else each.text}
        for each in answer.message.content or ()
    ]
    calls = [
        {"id": each.id, "name": each.function.name, "arguments": each.function.arguments}
        for each in answer.message.tool_calls or ()
    ]
    return {"content": content, "calls": calls}, answer


def without_ids(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without the ids of its calls, which are those of their request."""
    calls = [{**call, "id": None} for call in message["calls"]]
    return {**message, "calls": calls}


def main() -> None:
    """Run all checks of this client."""
    client = cohere.ClientV2(api_key=KEY, base_url=URL, timeout=60)
    found, answer = whole(client, [QUESTION])
    assert answer.finish_reason == "TOOL_CALL"
    thinking, text = found["content"]
    assert (thinking["type"], thinking["text"].strip()) == ("thinking", "I need the weather.")
    assert (text["type"], text["text"].strip()) == ("text", "I look.")
    assert [call["name"] for call in found["calls"]] == ["weather", "clock"]
    again, end = streamed(client, [QUESTION])
    assert (without_ids(again), end) == (without_ids(found), "TOOL_CALL")

    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": RESULTS[call["name"]]}
        for call in found["calls"]
    ]
    messages = [QUESTION, answer.message, *results]
    found, answer = whole(client, messages)
    assert answer.finish_reason == "COMPLETE"
    assert found["content"][-1]["text"].strip() == "It is 3 degrees in Oslo."
    again, end = streamed(client, messages)
    assert (again, end) == (found, "COMPLETE")

    for model, choice, status in (("gpt-9", None, 404), ("tiny", "REQUIRED", 400)):
        refused = None
        fields: dict[str, Any] = {"tool_choice": choice} if choice else {}
        try:
            client.chat(model=model, messages=[QUESTION], **fields)
        except ApiError as error:
            refused = error.status_code
        assert refused == status, refused
    print("all is well")


main()
