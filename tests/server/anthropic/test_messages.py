"""/v1/messages: blocks, events, stop reasons, usage and errors in Anthropic's form."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.dialects.anthropic.conversation import conversation_job
from octavo.dialects.anthropic.messages import MessagesWriter
from octavo.dialects.anthropic.schema import ContentBlock, CountRequest, InputMessage, Thinking
from octavo.formats.deltas import Delta, FinishDelta, ReasoningDelta, TextDelta, ToolCallDelta
from octavo.serving.answers.tool_use import NO_TOOLS
from octavo.serving.operation import TokenCounts
from tests.server.engine import FakeEngine
from tests.server.make import Client, serving, translation_context

PATH = "/v1/messages"
HELLO: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 7}


def run(directory: Path, test: Callable[[Client], Awaitable[None]], **options: Any) -> None:
    """Run a test with a client of a server."""

    async def main() -> None:
        async with serving(directory, FakeEngine(directory), **options) as client:
            await test(client)

    asyncio.run(main())


def events_of(text: str) -> list[dict[str, Any]]:
    """Return the payloads of a stream; check that each event has the name of its type."""
    *frames, end = text.split("\n\n")
    assert end == ""
    payloads = []
    for frame in frames:
        name, data = frame.split("\n")
        payloads.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {payloads[-1]['type']}"
    return [each for each in payloads if each["type"] != "ping"]


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the message that a client makes of a stream."""
    first, *middle, delta, last = events
    assert (first["type"], delta["type"], last["type"]) == (
        "message_start",
        "message_delta",
        "message_stop",
    )
    message: dict[str, Any] = first["message"]
    for each in middle:
        match each["type"]:
            case "content_block_start":
                assert each["index"] == len(message["content"])
                message["content"].append(each["content_block"] | {"json": ""})
            case "content_block_delta":
                assert each["index"] == len(message["content"]) - 1
                block, new = message["content"][-1], each["delta"]
                for name in ("text", "thinking", "signature"):
                    block[name] = block.get(name, "") + new.get(name, "")
                block["json"] += new.get("partial_json", "")
            case "content_block_stop":
                assert each["index"] == len(message["content"]) - 1
    for block in message["content"]:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text) if text else {}
        kept = {"text": ("text",), "thinking": ("thinking", "signature")}.get(block["type"], ())
        for name in {"text", "thinking", "signature"} - set(kept):
            block.pop(name, None)
    message |= delta["delta"]
    message["usage"] |= delta["usage"]
    return message


def test_a_stream_adds_up_to_the_whole_message(directory: Path) -> None:
    async def test(client: Client) -> None:
        body = {**HELLO, "system": "Be brief.", "temperature": 0}
        whole = (await client.post(PATH, json=body)).json()
        assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", "tiny")
        assert whole["id"].startswith("msg_")
        assert whole["stop_reason"] == "max_tokens"
        assert whole["usage"]["output_tokens"] == 7
        (block,) = whole["content"]
        assert block["type"] == "text"
        answer = await client.post(PATH, json={**body, "stream": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        message = assembled(events_of(answer.text))
        names = ("role", "content", "stop_reason", "stop_sequence", "model")
        assert [message[name] for name in names] == [whole[name] for name in names]
        used, uses = message["usage"], whole["usage"]
        assert used["output_tokens"] == uses["output_tokens"]
        read = ("input_tokens", "cache_read_input_tokens")
        assert sum(used[name] for name in read) == sum(uses[name] for name in read)

    run(directory, test)


def test_a_stop_sequence_is_named(directory: Path) -> None:
    async def test(client: Client) -> None:
        body = {**HELLO, "max_tokens": 30, "temperature": 0}
        text = (await client.post(PATH, json=body)).json()["content"][0]["text"]
        stop = text[5:7]
        body["stop_sequences"] = [stop]
        for stream in (False, True):
            answer = await client.post(PATH, json={**body, "stream": stream})
            message = assembled(events_of(answer.text)) if stream else answer.json()
            assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", stop)
            assert message["content"][0]["text"] == text[: text.index(stop)]

    run(directory, test)


def test_more_tokens_than_fit_are_reduced(directory: Path) -> None:
    async def test(client: Client) -> None:
        answer = await client.post(PATH, json={**HELLO, "max_tokens": 1_000_000})
        assert answer.status_code == 200
        assert answer.json()["stop_reason"] in ("max_tokens", "end_turn")

    run(directory, test)


def test_the_tokens_are_counted_as_they_are_used(directory: Path) -> None:
    async def test(client: Client) -> None:
        body = {"messages": HELLO["messages"], "system": [{"type": "text", "text": "Be brief."}]}
        counted = (await client.post(f"{PATH}/count_tokens", json=body)).json()
        used = (await client.post(PATH, json={**body, "max_tokens": 1})).json()["usage"]
        read = used["input_tokens"] + used["cache_read_input_tokens"]
        assert counted == {"input_tokens": read}

    run(directory, test)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "judge", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "content[0].text"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content is empty"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"thread": {"type": "continue", "previous_message_id": "msg_1"}}, "thread"),
    ],
)
def test_a_wrong_request_is_refused_in_the_form_of_the_dialect(
    directory: Path, change: dict[str, Any], field: str
) -> None:
    async def test(client: Client) -> None:
        for path in (PATH, f"{PATH}/count_tokens"):
            body = {**HELLO, **change}
            if path != PATH:
                if not change.keys() & {"messages", "mcp_servers", "thread"}:
                    continue
                del body["max_tokens"]
            answer = await client.post(path, json=body)
            assert answer.status_code == 400
            assert answer.json()["type"] == "error"
            error = answer.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert field in error["message"]

    run(directory, test)


def test_statuses_have_the_types_of_the_dialect(directory: Path) -> None:
    async def test(client: Client) -> None:
        denied = await client.post(PATH, json=HELLO)
        assert (denied.status_code, denied.json()["error"]["type"]) == (401, "authentication_error")
        headers = {"x-api-key": "a-long-key"}
        missing = await client.post(PATH, json={**HELLO, "model": "another"}, headers=headers)
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
        assert (await client.post(PATH, json=HELLO, headers=headers)).status_code == 200

    run(directory, test, api_keys=("a-long-key",))


def test_an_error_in_a_stream_is_an_event(directory: Path) -> None:
    async def main() -> None:
        engine = FakeEngine(directory)
        async with serving(directory, engine) as client:
            engine.runner.poisoned.add("bad-")
            answer = await client.post(
                PATH, json={**HELLO, "stream": True}, headers={"x-request-id": "bad-1"}
            )
            has_begun = answer.status_code == 200
            error = events_of(answer.text)[-1] if has_begun else answer.json()
            assert (error["type"], error["error"]["type"]) == ("error", "api_error")

    asyncio.run(main())


def conversation(**fields: Any) -> Any:
    """Return the conversation that a worker gets for a request."""
    job = conversation_job(CountRequest(**fields), translation_context(), NO_TOOLS)
    assert job.conversation is not None
    return job.conversation


def test_calls_and_results_become_messages_of_their_own() -> None:
    made = conversation(
        system="Help.",
        messages=[
            InputMessage(role="user", content="Weather?"),
            InputMessage(
                role="assistant",
                content=[
                    ContentBlock(type="thinking", thinking="A tool knows.", signature="s"),
                    ContentBlock(type="text", text="I look."),
                    ContentBlock(type="tool_use", id="a", name="weather", input={"place": "Rome"}),
                    ContentBlock(type="tool_use", id="b", name="weather", input={"place": "Oslo"}),
                ],
            ),
            InputMessage(
                role="user",
                content=[
                    ContentBlock(type="tool_result", tool_use_id="a", content="sun"),
                    ContentBlock(
                        type="tool_result",
                        tool_use_id="b",
                        content=[ContentBlock(type="text", text="snow")],
                    ),
                    ContentBlock(type="text", text="And?"),
                ],
            ),
        ],
    )
    function = {"name": "weather", "arguments": {"place": "Rome"}}
    assert made.messages[:2] == [
        {"role": "system", "content": "Help."},
        {"role": "user", "content": "Weather?"},
    ]
    answer, first, second, more = made.messages[2:]
    assert answer["content"] == [{"type": "text", "text": "I look."}]
    assert answer["reasoning_content"] == "A tool knows."
    assert answer["tool_calls"][0] == {"id": "a", "type": "function", "function": function}
    assert first == {"role": "tool", "tool_call_id": "a", "content": "sun"}
    assert second == {"role": "tool", "tool_call_id": "b", "content": "snow"}
    assert more == {"role": "user", "content": [{"type": "text", "text": "And?"}]}
    assert made.add_generation_prompt


def test_turns_of_one_role_are_joined_and_the_last_answer_is_continued() -> None:
    made = conversation(
        messages=[
            InputMessage(role="user", content="One"),
            InputMessage(role="user", content="two"),
            InputMessage(role="assistant", content="Thr"),
        ],
        thinking=Thinking(type="disabled"),
    )
    parts = [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}]
    assert made.messages == [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "Thr"},
    ]
    assert (made.add_generation_prompt, made.continue_final_message) == (False, True)
    assert made.variables == {"enable_thinking": False, "thinking": False}


DELTAS: list[Delta] = [
    ReasoningDelta("Let me "),
    ReasoningDelta("think."),
    TextDelta("I look"),
    TextDelta(" it up."),
    ToolCallDelta(0, name="weather", call_id="call_1"),
    ToolCallDelta(0, '{"place": '),
    ToolCallDelta(0, '"Rome"}'),
    ToolCallDelta(1, name="time", call_id="call_2"),
    FinishDelta("stop"),
]


def test_reasoning_text_and_calls_are_blocks() -> None:
    made: list[Any] = []
    for stream in (True, False):
        message = written(DELTAS, stream=stream)
        assert message["stop_reason"] == "tool_use"
        made.append(message["content"])
    assert made[0] == made[1]
    thinking, text, first, second = made[0]
    assert thinking == {"type": "thinking", "thinking": "Let me think.", "signature": ""}
    assert text == {"type": "text", "text": "I look it up."}
    assert first == {
        "type": "tool_use",
        "id": "call_1",
        "name": "weather",
        "input": {"place": "Rome"},
    }
    assert second == {"type": "tool_use", "id": "call_2", "name": "time", "input": {}}


def test_a_call_that_the_model_gives_no_id_or_an_empty_one_gets_an_id() -> None:
    deltas: list[Delta] = [
        *(ToolCallDelta(0, "{}", name="f"), ToolCallDelta(1, "{}", name="g", call_id="")),
        FinishDelta("stop"),
    ]
    made = [written(deltas, stream=stream)["content"] for stream in (True, False)]
    assert made[0] == made[1]
    names = [call["id"] for call in made[0]]
    assert len(set(names)) == 2
    assert all(name.startswith("toolu_") for name in names)


def test_arguments_that_are_no_object_are_kept_as_text() -> None:
    deltas: list[Delta] = [
        ToolCallDelta(0, "[1, 2", name="f", call_id="c"),
        FinishDelta("length"),
    ]
    message = written(deltas, stream=False)
    assert message["content"][0]["input"] == {"invalid_json": "[1, 2"}
    assert message["stop_reason"] == "max_tokens"


def written(deltas: list[Delta], *, stream: bool) -> dict[str, Any]:
    """Return the message that a writer makes of these deltas."""
    exchange: Any = SimpleNamespace(request_id="1", model_name="tiny")
    writer = MessagesWriter(exchange, None)  # type: ignore[arg-type]
    counts = TokenCounts(3)
    if not stream:
        output = RequestOutput("1", None, [], [CompletionOutput(0, deltas=deltas)])
        answer: dict[str, Any] = json.loads(b"".join(writer.whole([output], counts, None)))
        return answer
    frames = list(writer.opening(counts))
    for delta in deltas:
        output = RequestOutput("1", None, [], [CompletionOutput(0, deltas=[delta])])
        frames += writer.frames(0, output, counts)
    frames += writer.closing(counts, None)
    return assembled(events_of(b"".join(frames).decode()))
