"""/v2/chat: blocks, plans, calls, events, ends and errors in Cohere's form."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec import convert
from msgspec.structs import replace

from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.dialects.cohere.chat import translate
from octavo.dialects.cohere.schema import CohereChatRequest, CohereMessage
from octavo.dialects.cohere.writer import CohereWriter
from octavo.formats.deltas import Delta, FinishDelta, ReasoningDelta, TextDelta, ToolCallDelta
from octavo.formats.description import Formats
from octavo.formats.registry import tool_format
from octavo.serving.operation import TokenCounts
from tests.server.durable.make import in_loop
from tests.server.engine import FakeEngine
from tests.server.make import Client, serving, translation_context
from tests.server.openai.scripted import OSLO, TOOLS, called, writing

PATH = "/v2/chat"
ASKED: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "How warm is it in Oslo?"}],
    "max_tokens": 300,
}
TEXT = f"<think>\nA tool knows.\n</think>\n\nI look.{OSLO}\n{called('clock', {})}"


def payloads_of(text: str) -> list[dict[str, Any]]:
    """Return the payloads of a stream; check that each event has the name of its type."""
    *frames, done, end = text.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    payloads = []
    for frame in frames:
        name, data = frame.split("\n")
        payloads.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {payloads[-1]['type']}"
    return payloads


def assembled(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the response that a client makes of a stream."""
    first, *middle, last = events
    assert (first["type"], last["type"]) == ("message-start", "message-end")
    message: dict[str, Any] = {"role": first["delta"]["message"]["role"]}
    is_open = False
    for each in middle:
        new = each.get("delta", {}).get("message", {})
        match each["type"]:
            case "content-start":
                content = message.setdefault("content", [])
                assert (each["index"], is_open) == (len(content), False)
                content.append(new["content"])
                is_open = True
            case "content-delta":
                assert each["index"] == len(message["content"]) - 1
                for name, text in new["content"].items():
                    message["content"][-1][name] += text
            case "tool-plan-delta":
                message["tool_plan"] = message.get("tool_plan", "") + new["tool_plan"]
            case "tool-call-start":
                calls = message.setdefault("tool_calls", [])
                assert (each["index"], is_open) == (len(calls), False)
                calls.append(new["tool_calls"])
                is_open = True
            case "tool-call-delta":
                call = message["tool_calls"][each["index"]]
                call["function"]["arguments"] += new["tool_calls"]["function"]["arguments"]
            case "content-end" | "tool-call-end":
                assert is_open
                is_open = False
    assert not is_open
    return {"id": first["id"], "message": message, **last["delta"]}


async def both(client: Client, **fields: Any) -> dict[str, Any]:
    """Return the response, whole and put together from a stream, which must be the same."""
    body, headers = {**ASKED, **fields}, {"x-request-id": "one"}
    answer = await client.post(PATH, json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    whole: dict[str, Any] = answer.json()
    stream = await client.post(PATH, json={**body, "stream": True}, headers=headers)
    made = assembled(payloads_of(stream.text))
    for each in (whole, made):
        each["usage"].pop("cached_tokens")
    assert made == whole
    return whole


@in_loop
async def test_reasoning_text_and_calls_are_in_their_places(tmp_path: Path) -> None:
    async with writing(tmp_path, TEXT) as client:
        answer = await both(client, tools=TOOLS)
        message = answer["message"]
        thinking, text = message["content"]
        assert (thinking["type"], thinking["thinking"].strip()) == ("thinking", "A tool knows.")
        assert (text["type"], text["text"].strip()) == ("text", "I look.")
        first, second = message["tool_calls"]
        assert first["function"] == {"name": "weather", "arguments": '{"city": "Oslo"}'}
        assert (second["type"], second["function"]["name"]) == ("function", "clock")
        assert first["id"] != second["id"]
        assert answer["finish_reason"] == "TOOL_CALL"
        result = {"role": "tool", "tool_call_id": first["id"], "content": [{"type": "document"}]}
        result["content"][0]["document"] = {"data": {"degrees": 3}}
        again = await both(client, messages=[*ASKED["messages"], message, result], tools=TOOLS)
        assert again["finish_reason"] == "TOOL_CALL"


@in_loop
async def test_the_end_of_an_answer_has_its_reason(directory: Path) -> None:
    async with serving(directory, FakeEngine(directory)) as client:
        fields: dict[str, Any] = {"temperature": 0, "max_tokens": 30, "k": 5, "p": 0.9, "seed": 3}
        whole = await both(client, **fields)
        assert whole["finish_reason"] == "MAX_TOKENS"
        assert whole["usage"]["tokens"]["output_tokens"] == 30
        text = whole["message"]["content"][0]["text"]
        assert text
        stop = text[4:7]
        stopped = await both(client, **fields, stop_sequences=[stop])
        assert stopped["finish_reason"] == "STOP_SEQUENCE"
        assert stopped["message"]["content"][0]["text"] == text[: text.index(stop)]


def written(deltas: list[Delta], *, is_plan: bool) -> dict[str, Any]:
    """Return what a writer makes of deltas, as a stream and whole, which must be the same."""
    exchange: Any = SimpleNamespace(request_id="one")
    writer = partial(CohereWriter, is_plan, exchange, None)  # type: ignore[arg-type]
    counts, stream = TokenCounts(3), writer()
    output = RequestOutput("one", None, [], [CompletionOutput(0, deltas=deltas)])
    frames = [
        *stream.opening(counts),
        *stream.frames(0, output, counts),
        *stream.closing(counts, None),
    ]
    made = assembled(payloads_of(b"".join(frames).decode()))
    (body,) = writer().whole([output], counts, None)
    assert json.loads(body) == made
    return made


@pytest.mark.parametrize("is_plan", [True, False])
def test_a_plan_stands_beside_the_calls(is_plan: bool) -> None:
    deltas: list[Delta] = [
        *(ReasoningDelta("I look"), ReasoningDelta(" it up")),
        *(ToolCallDelta(0, name="weather"), ToolCallDelta(0, arguments="{}")),
        FinishDelta("stop"),
    ]
    message = written(deltas, is_plan=is_plan)["message"]
    plan, thought = "I look it up", {"type": "thinking", "thinking": "I look it up"}
    assert message.get("tool_plan") == (plan if is_plan else None)
    assert message.get("content") == (None if is_plan else [thought])
    assert message["tool_calls"][0]["id"]
    answer = written([TextDelta("yes"), FinishDelta("stop")], is_plan=is_plan)
    assert answer["finish_reason"] == "COMPLETE"


@pytest.mark.parametrize(
    ("is_reasoning", "tools", "thinking", "expected"),
    [
        (None, True, None, False),  # of a format without plans
        (True, True, None, False),
        (False, True, None, True),
        (False, False, None, False),
        (False, True, {"type": "enabled"}, False),
    ],
)
def test_the_server_says_whether_reasoning_is_a_plan(
    is_reasoning: bool | None, tools: bool, thinking: Any, expected: bool
) -> None:
    context = translation_context()
    formats = replace(context.formats, formats=Formats(tool_format("hermes")))
    context = replace(context, formats=formats, cohere_is_reasoning_model=is_reasoning)
    body = {**ASKED, "tools": TOOLS if tools else None, "thinking": thinking}
    writer: Any = translate(context, convert(body, CohereChatRequest)).writer
    assert writer.args == (expected,)


@in_loop
async def test_all_routes_are_under_vllms_prefix_too(directory: Path) -> None:
    """A rendered request is that of the same conversation in OpenAI's dialect."""
    async with serving(directory, FakeEngine(directory)) as client:
        body = {**ASKED, "max_tokens": 4, "temperature": 0, "stop_sequences": ["END"]}
        answers = [(await client.post(f"{at}{PATH}", json=body)).json() for at in ("", "/cohere")]
        assert answers[0]["message"] == answers[1]["message"]
        rendered = (await client.post(f"/cohere{PATH}/render", json=body)).json()
        same = {**ASKED, "max_tokens": 4, "temperature": 0, "stop": ["END"]}
        expected = (await client.post("/v1/chat/completions/render", json=same)).json()
        for each in (rendered, expected):
            del each["request_id"]
        assert rendered == expected
        for path in (f"/cohere{PATH}", f"{PATH}/render"):
            wrong = await client.post(path, json={"messages": []})
            assert (wrong.status_code, wrong.json().keys()) == (400, {"message"})
        ranked = {"model": "tiny", "query": "a", "documents": ["b", "c"]}
        assert (await client.post("/cohere/v2/rerank", json=ranked)).status_code == 200


def test_what_is_asked_for_reaches_the_template() -> None:
    context = translation_context()
    request = CohereChatRequest(
        model="tiny",
        messages=[
            CohereMessage(role="user", content="x"),
            CohereMessage(role="assistant", tool_plan="I plan", content="y"),
            CohereMessage(role="user", content="z"),
        ],
        documents=["a text"],
        safety_mode="STRICT",
    )
    (job,) = translate(context, request).prompts
    assert not isinstance(job, list)
    assert job.conversation is not None
    assert job.conversation.documents == [{"text": "a text"}]
    assert job.conversation.variables["safety_mode"] == "STRICT"
    assert job.conversation.messages[1]["reasoning_content"] == "I plan"


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"model": "gpt-9"}, "gpt-9"),
        ({"p": 0}, "p"),
        ({"logprobs": True}, "logprobs"),
        ({"tool_choice": "REQUIRED"}, "tool_choice"),
        ({"max_tokens": 100_000}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "content[0].type"),
        ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
        (
            {
                "max_tokens": 9,
                "response_format": {"type": "json_object", "json_schema": {"type": 3}},
            },
            "response_format.json_schema",
        ),
        ({"response_format": {"type": "text", "json_schema": {}}}, "response_format.json_schema"),
        (
            {"max_tokens": 9, "thinking": {"type": "enabled", "token_budget": 5}},
            "thinking.token_budget",
        ),
    ],
)
@in_loop
async def test_errors_name_the_field(directory: Path, changes: dict[str, Any], place: str) -> None:
    async with serving(directory, FakeEngine(directory)) as client:
        for stream in (False, True):
            answer = await client.post(PATH, json={**ASKED, "stream": stream, **changes})
            assert answer.status_code in (400, 404), answer.text
            assert place in answer.json()["message"]
