"""/v1/chat/completions, field by field."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from octavo.dialects.common.schema.chat import ChatRequest, Message
from octavo.serving.schema import reader
from octavo.serving.schema.decode import MAX_REPORTED, decode
from tests.server.engine import FakeEngine
from tests.server.make import events, serving


def run(directory: Path, content: Any = "Hello", **fields: Any) -> Any:
    async def main() -> Any:
        options = fields.pop("options", {})
        async with serving(directory, **options) as client:
            return await client.chat(content, **fields)

    return asyncio.run(main())


def prompt_of(directory: Path, **fields: Any) -> str:
    """Return the prompt's text as the model received it."""

    async def main() -> str:
        options = fields.pop("options", {})
        async with serving(directory, **options) as client:
            body = {"max_tokens": 1, "return_token_ids": True, **fields}
            answer = (await client.post("/v1/chat/completions", json=body)).json()
            assert "prompt_token_ids" in answer, answer
            ids = answer["prompt_token_ids"]
            return str((await client.post("/detokenize", json={"tokens": ids})).json()["prompt"])

    return asyncio.run(main())


def test_an_answer(directory: Path) -> None:
    body = run(directory, max_completion_tokens=4, max_tokens=9)
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 4, "max_completion_tokens wins"


def test_without_a_number_the_answer_may_fill_the_context(directory: Path) -> None:
    body = run(directory)
    assert body["usage"]["total_tokens"] == 256
    capped = run(directory, options={"max_output_tokens": 5})
    assert capped["usage"]["completion_tokens"] == 5


def test_the_model_may_recommend_a_length(directory: Path) -> None:
    """A request may ask for more than the model recommends; only `max_output_tokens` limits it."""

    async def main() -> None:
        engine = FakeEngine(directory, max_new_tokens=7)
        async with serving(directory, engine) as client:
            for fields, expected in (({}, 7), ({"max_tokens": 9}, 9)):
                usage = (await client.chat(**fields))["usage"]
                assert usage["completion_tokens"] == expected

    asyncio.run(main())


def test_a_message_is_opened_or_continued(directory: Path) -> None:
    begun = [{"role": "user", "content": "U"}, {"role": "assistant", "content": "Well"}]
    both = {"messages": begun, "continue_final_message": True, "add_generation_prompt": True}
    error = run(directory, **both)["error"]
    assert error["param"] == "continue_final_message"
    assert "add_generation_prompt" in error["message"]
    assert "choices" in run(directory, **{**both, "add_generation_prompt": False}, max_tokens=1)
    assert "choices" in run(directory, **{**both, "add_generation_prompt": None}, max_tokens=1)


def test_a_stream_begins_with_the_role_and_ends_once(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            fields = {"max_tokens": 12, "seed": 3, "n": 2}
            whole = await client.chat(**fields)
            messages = [{"role": "user", "content": "Hello"}]
            body = {"messages": messages, "stream": True, **fields}
            chunks = events((await client.post("/v1/chat/completions", json=body)).text)
            assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
            assert len({chunk["id"] for chunk in chunks}) == 1
            for index in (0, 1):
                mine = [c for e in chunks for c in e["choices"] if c["index"] == index]
                assert mine[0]["delta"] == {"role": "assistant", "content": ""}
                assert [c["finish_reason"] for c in mine[:-1]] == [None] * (len(mine) - 1)
                assert mine[-1]["finish_reason"] == "length"
                assert all("role" not in c["delta"] for c in mine[1:])
                text = "".join(c["delta"].get("content", "") for c in mine)
                assert text == whole["choices"][index]["message"]["content"]

    asyncio.run(main())


def test_logprobs_have_bytes(directory: Path) -> None:
    body = run(directory, logprobs=True, top_logprobs=2, max_tokens=6, temperature=0)
    content = body["choices"][0]["logprobs"]["content"]
    assert len(content) == 6
    joined = bytes(byte for token in content for byte in token["bytes"])
    assert joined.decode("utf-8", "replace") == body["choices"][0]["message"]["content"]
    assert all(len(token["top_logprobs"]) == 2 for token in content)
    best = [token["top_logprobs"][0]["logprob"] for token in content]
    assert best == sorted(best)
    assert run(directory, top_logprobs=2)["error"]["param"] == "top_logprobs"
    bare = run(directory, logprobs=True, max_tokens=1)
    assert bare["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_the_template_writes_the_prompt(directory: Path) -> None:
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}]
    assert prompt_of(directory, messages=messages) == "<s>system: S\n<s>user: U\n<s>assistant: "
    closed = prompt_of(directory, messages=messages, add_generation_prompt=False)
    assert closed == "<s>system: S\n<s>user: U\n"
    begun = [*messages, {"role": "assistant", "content": "Well"}]
    going_on = prompt_of(directory, messages=begun, continue_final_message=True)
    assert going_on == "<s>system: S\n<s>user: U\n<s>assistant: Well"
    developer = [{"role": "developer", "content": "D"}]
    assert prompt_of(directory, messages=developer).startswith("<s>system: D")


def test_content_parts_are_put_together(directory: Path) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}]
    assert prompt_of(directory, messages=messages).startswith("<s>user: a\nb\n")
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": "http://x"}}
    error = run(directory, [image], options={"strict": True})["error"]
    assert error["param"] == "messages[0].content[0].type"
    assert "'image_url' is not supported" in error["message"]
    error = run(directory, [{**image, "type": "text", "text": "a"}])["error"]
    assert error["param"] == "messages[0].content[0].image_url"


def test_unknown_fields_of_messages_are_reported(directory: Path) -> None:
    async def main() -> None:
        part = {"type": "text", "text": "b", "txt": [[1]]}
        messages = [
            {"role": "user", "content": "a"},
            {"role": "user", "content": [part, "c"], "contnt": {}, "role ": 1},
        ]
        body: dict[str, Any] = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
        async with serving(directory) as client:
            response = await client.post("/v1/chat/completions", json=body)
            reported = response.headers["x-octavo-unknown-fields"].split(",")
            assert reported == [
                "messages[1].content[0].txt",
                "messages[1].contnt",
                "messages[1].role%20",
            ]
            assert client.server.metrics.unknown_fields.value() == 3
            ids = response.json()["prompt_token_ids"]
            prompt = (await client.post("/detokenize", json={"tokens": ids})).json()["prompt"]
            assert prompt == "<s>user: a\n<s>user: b\nc\n<s>assistant: "
            many = {"messages": [{"role": "user", "content": "a", "x": 1}] * 4097}
            response = await client.post("/v1/chat/completions", json=many)
            error = response.json()["error"]
            assert error["param"] == "messages"
            assert "array of length <= 4096, got 4097" in error["message"]
            wrong = {"messages": [{"role": 1, "x": 1}]}
            response = await client.post("/v1/chat/completions", json=wrong)
            assert response.json()["error"]["param"] == "messages[0].role"
        async with serving(directory, strict=True) as client:
            for route in ("/v1/chat/completions", "/tokenize"):
                error = (await client.post(route, json={"messages": messages})).json()["error"]
                assert error["param"] == "messages[1].content[0].txt"
                assert "did you mean 'text'?" in error["message"]

    asyncio.run(main())


def decoded(messages: list[dict[str, Any]]) -> tuple[ChatRequest, list[str]]:
    request, unknown = decode(json.dumps({"messages": messages}).encode(), ChatRequest)
    return request, [each.path for each in unknown]


def test_the_search_for_unknown_fields_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values without anything unknown are not looked into."""
    looked_at: list[msgspec.Raw] = []
    read_inside = reader.Reader._read_inside

    def counted(self: reader.Reader, part: msgspec.Raw, *others: Any) -> Any:
        looked_at.append(part)
        return read_inside(self, part, *others)

    monkeypatch.setattr(reader.Reader, "_read_inside", counted)
    parts = [{"type": "text", "text": "a"}] * 4000
    messages: list[dict[str, Any]] = [{"role": "user", "content": parts} for _ in range(75)]
    messages[1] = {"role": "user", "content": [*parts, {"type": "text", "text": "b", "x`y": 1}]}
    request, unknown = decoded(messages)
    assert unknown == ["messages[1].content[4000].x`y"]
    assert len(looked_at) == 4, "a list, a message in it, a list in that, and a part"
    assert [len(each.content or "") for each in request.messages] == [4000, 4001, *[4000] * 73]
    assert all(isinstance(each, Message) for each in request.messages)
    _, told = decoded([{"role": "user", "content": "a", "x": 1}] * 1000)
    assert told == [f"messages[{index}].x" for index in range(MAX_REPORTED)]


def test_messages_may_be_as_answers_are(directory: Path) -> None:
    """Clients send back the fields that they received, empty or without effect."""
    empty: dict[str, Any] = {
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
    }
    answer = {"role": "assistant", "content": "A", **empty}
    marked = {"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}
    refused: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "refusal": "No.",
        "tool_calls": [],
    }
    messages = [answer, {"role": "user", "content": [marked]}, refused]
    prompt = prompt_of(directory, messages=messages, options={"strict": True})
    assert prompt == "<s>assistant: A\n<s>user: b\n<s>assistant: No.\n<s>assistant: "


@pytest.mark.parametrize(
    ("field", "value", "advice"),
    [
        ("audio", {"id": "audio_1"}, "reads text"),
        ("prefix", True, "continue_final_message=true"),
        ("partial", True, "continue_final_message=true"),
    ],
)
def test_unsupported_fields_of_a_message_are_refused(
    directory: Path, field: str, value: Any, advice: str
) -> None:
    messages = [{"role": "assistant", "content": "A", field: value}]
    error = run(directory, messages=messages, options={"strict": True})["error"]
    assert (error["param"], error["code"]) == (f"messages[0].{field}", "unsupported_parameter")
    assert advice in error["message"]


def test_a_template_of_the_request_must_be_trusted(directory: Path) -> None:
    fields = {
        "messages": [{"role": "user", "content": "x"}],
        "chat_template": "{{ greeting }} {{ messages[0].content }}",
        "chat_template_kwargs": {"greeting": "hello"},
    }
    refused = run(directory, **{name: fields[name] for name in ("chat_template",)})
    assert refused["error"]["param"] == "chat_template"
    trusting = {"trust_request_chat_template": True}
    assert prompt_of(directory, options=trusting, **fields) == "hello x"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_a_template_of_the_request_that_fails_is_named(directory: Path, path: str) -> None:
    async def main() -> None:
        async with serving(directory, trust_request_chat_template=True) as client:
            messages = [{"role": "user", "content": "x"}]
            body = {"messages": messages, "chat_template": "{{ 1 // 0 }}"}
            response = await client.post(path, json=body)
            assert response.status_code == 400
            assert response.json()["error"]["param"] == "chat_template"

    asyncio.run(main())


def test_echo_prepends_the_assistants_own_words(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            body = {
                "messages": [
                    {"role": "user", "content": "x"},
                    {"role": "assistant", "content": "Well, "},
                ],
                "echo": True,
                "continue_final_message": True,
                "max_tokens": 3,
                "temperature": 0,
            }
            answer = (await client.post("/v1/chat/completions", json=body)).json()
            text = answer["choices"][0]["message"]["content"]
            assert text.startswith("Well, ")
            response = await client.post("/v1/chat/completions", json={**body, "stream": True})
            deltas = [
                c["delta"].get("content", "") for e in events(response.text) for c in e["choices"]
            ]
            assert "".join(deltas) == text

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "system", "content": None}]}, "messages[0].content"),
        ({"messages": [{"role": "developer", "content": []}]}, "messages[0].content"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json"}}, "response_format.type"),
        ({"modalities": ["audio"]}, "modalities"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"reasoning_effort": "enormous"}, "reasoning_effort"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages"),
        ({"messages": [{"role": "tool"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x" * 2000}]}, "messages"),
    ],
)
def test_the_wrong_field_is_named(directory: Path, fields: Any, param: str) -> None:
    error = run(directory, **fields)["error"]
    assert error["param"] == param, error


def test_harmless_forms_are_taken(directory: Path) -> None:
    harmless = {
        "tools": [],
        "tool_choice": "none",
        "functions": None,
        "parallel_tool_calls": True,
        "response_format": {"type": "text"},
        "modalities": ["text"],
        "service_tier": "auto",
        "store": False,
        "metadata": {},
        "user": "u",
        "reasoning_effort": "low",
        "prediction": None,
    }
    body = run(directory, max_tokens=1, **harmless, options={"strict": True})
    assert "choices" in body, body


def test_tokenize_writes_conversations_too(directory: Path) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            body = {"messages": [{"role": "user", "content": "x"}], "return_token_strs": True}
            said = (await client.post("/tokenize", json=body)).json()
            assert said["count"] == len(said["tokens"]) == len(said["token_strs"])
            assert said["token_strs"][0] == "<s>"
            assert said["max_model_len"] == 256
            both = {**body, "prompt": "x"}
            assert (await client.post("/tokenize", json=both)).status_code == 400

    asyncio.run(main())


def test_the_longest_possible_sequence_is_reported(directory: Path) -> None:
    """A small KV cache may hold less than the model's context."""

    async def main() -> None:
        async with serving(directory, FakeEngine(directory, longest_tokens=48)) as client:
            said = (await client.post("/tokenize", json={"prompt": "x"})).json()
            (card,) = (await client.get("/v1/models")).json()["data"]
            assert said["max_model_len"] == card["max_model_len"] == 48

    asyncio.run(main())
