"""What a render says of a conversation is enough to answer it where its tokens are generated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from octavo.dialects.common.parse_context import context_of, use_of
from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.tools import tool_use
from octavo.serving.answers.tool_use import ToolUse
from octavo.serving.schema.decode import decode
from tests.server.durable.make import in_loop
from tests.server.engine import FakeEngine, make_directory
from tests.server.make import Client, events, serving
from tests.server.openai.scripted import (
    CLOCK,
    MESSAGES,
    OSLO,
    PATH,
    ROOM,
    THOUGHT,
    TOOLS,
    WEATHER,
    Script,
    make_files,
    writing,
)

TOKENS = "/inference/v1/generate"
NAMED = {"type": "function", "function": {"name": "weather"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
SHAPE = {"type": "json_schema", "json_schema": {"name": "one", "schema": {"type": "integer"}}}
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}
LIKELY = {"logprobs": True, "top_logprobs": 2}


def without_ids(choice: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without the ids of its calls, which are those of its request."""
    for call in choice["message"].get("tool_calls", ()):
        assert call.pop("id")
    return choice


async def rendered(client: Client, body: dict[str, Any], path: str = PATH) -> dict[str, Any]:
    """Return what the engine would get of a conversation."""
    answer = await client.post(f"{path}/render", json=body)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = answer.json()
    assert "warnings" not in made
    return made


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("It is 3 degrees.", {}),
        (f"{THOUGHT}It is 3 degrees.", LIKELY),
        (f"{THOUGHT}It is 3 degrees.", {"include_reasoning": False}),
        (f"{THOUGHT}It is 3 degrees.", {"include_reasoning": False, **LIKELY}),
        (f"{THOUGHT}It is 3 degrees.", {"stop": ["3"]}),
        (f"{THOUGHT}7", {"response_format": SHAPE}),
        ("7", {"response_format": SHAPE, **QUIET}),
        (f"{THOUGHT}I look.\n{OSLO}", {"tools": TOOLS}),
        (f"{THOUGHT}I look.\n{OSLO}", {"tools": TOOLS, "tool_choice": "none"}),
        (f"{THOUGHT}I look.\n{OSLO}", {"tools": TOOLS, "tool_choice": ALLOWED}),
        (f"{THOUGHT}{OSLO}\n{OSLO}", {"tools": TOOLS, "parallel_tool_calls": False}),
        (f"{THOUGHT}{OSLO}", {"tools": TOOLS, "tool_choice": "required"}),
        (f"{THOUGHT}{OSLO}", {"tools": TOOLS, "tool_choice": NAMED, "n": 2}),
        (f"{THOUGHT}{OSLO}", {"tools": [STRICT, CLOCK], "response_format": SHAPE}),
        (OSLO, {"tools": TOOLS, "tool_choice": "required", **QUIET}),
    ],
)
@in_loop
async def test_a_rendered_conversation_is_answered_as_the_conversation(
    tmp_path: Path, text: str, more: dict[str, Any]
) -> None:
    runner = Script(make_files(tmp_path), [("", text)])
    async with serving(tmp_path, FakeEngine(tmp_path, runner=runner, **ROOM)) as client:
        body = {"messages": MESSAGES, "return_token_ids": True, "max_tokens": 200, **more}
        direct = (await client.post(PATH, json=body)).json()
        request = await rendered(client, body)
        thinks = "chat_template_kwargs" not in more
        assert request["reasoning_ended"] is not thinks
        answer = await client.post(TOKENS, json={**request, "output_mode": "derender"})
        assert answer.status_code == 200, answer.text
        assert "x-octavo-unknown-fields" not in answer.headers
        made = answer.json()
        for one, wanted in zip(made["choices"], direct["choices"], strict=True):
            assert without_ids(one) == without_ids(wanted)
        hidden = more.get("include_reasoning") is False
        assert (direct["choices"][0]["token_ids"] is None) == hidden
        for name in ("prompt_tokens", "completion_tokens", "completion_tokens_details"):
            assert made["usage"][name] == direct["usage"][name]
        # The tokens are bound in the same way, also where they are not read.
        bare = (await client.post(TOKENS, json=request)).json()
        if not hidden:
            ids = [choice["token_ids"] for choice in bare["choices"]]
            assert ids == [choice["token_ids"] for choice in direct["choices"]]
        assert len(set(runner.grammars)) == 1
        assert len(runner.grammars) == 3 * more.get("n", 1)
        assert client.server.admission.num_open == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"tools": [{"name": "weather", "input_schema": {"type": "object"}}]}),
        ("/v1/messages", {}),
        ("/v1/responses", {"tools": [{"type": "function", "name": "weather"}]}),
        ("/v1/responses", {"tools": [{"type": "function", "name": "weather", "strict": True}]}),
    ],
)
@in_loop
async def test_conversations_of_other_dialects_have_a_context_too(
    tmp_path: Path, path: str, body: dict[str, Any]
) -> None:
    async with writing(tmp_path, f"{THOUGHT}I look.\n{OSLO}") as client:
        said = {"messages": MESSAGES, "max_tokens": 200}
        if path == "/v1/responses":
            said = {"input": "How warm is it in Oslo?", "max_output_tokens": 200}
        request = await rendered(client, {**said, **body}, path)
        made = (await client.post(TOKENS, json={**request, "output_mode": "derender"})).json()
        (choice,) = made["choices"]
        calls = [call["function"]["name"] for call in choice["message"].get("tool_calls", ())]
        assert calls == (["weather"] if body else [])
        assert choice["message"]["reasoning"]


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tool_choice": "none"},
        {"tool_choice": "required"},
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"tool_choice": NAMED},
        {"tool_choice": NAMED, "parallel_tool_calls": True},
        {"tool_choice": ALLOWED},
        {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [NAMED, CLOCK]}}},
        {"tool_choice": "auto", "parallel_tool_calls": False},
        {"tools": [STRICT]},
        {"tools": [STRICT], "tool_choice": NAMED},
        {"tools": []},
    ],
)
def test_a_context_says_all_of_the_use_of_tools(more: dict[str, Any]) -> None:
    body = {"messages": MESSAGES, "tools": TOOLS, **more}
    request, _ = decode(json.dumps(body).encode(), ChatRequest)
    use = tool_use(request)
    again = use_of(context_of(use, include_reasoning=True))
    assert again == use or (not use.callable and again == ToolUse())


MANY = [{"type": "function", "function": {"name": f"t{index}"}} for index in range(513)]
NEVER = {"type": "object", "properties": {"a": {"type": "no such type"}}, "required": ["a"]}
UNKNOWN = {"type": "function", "function": {"name": "t", "parameters": NEVER, "strict": True}}
LONG = {"type": "function", "function": {"name": "t", "description": "x" * (1 << 18)}}


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"parse_context": None}, "parse_context"),
        ({"stream": True}, "stream"),
        ({"sampling_params": {"detokenize": False}}, "sampling_params.detokenize"),
        ({"parse_context": []}, "parse_context"),
        ({"parse_context": {"tools": MANY}}, "parse_context.tools"),
        ({"parse_context": {"tools": [LONG]}}, "parse_context.tools"),
        ({"parse_context": {"tools": [CLOCK, CLOCK]}}, "parse_context.tools[1].function.name"),
        ({"parse_context": {"tool_choice": NAMED}}, "parse_context.tool_choice"),
        (
            {"parse_context": {"tools": [CLOCK], "tool_choice": NAMED}},
            "parse_context.tool_choice",
        ),
        (
            {"parse_context": {"tools": [UNKNOWN]}},
            "parse_context.tools[0].function.parameters.properties.a.type",
        ),
        ({"parse_context": {"include_reasoning": "no"}}, "parse_context.include_reasoning"),
        ({"parse_context": {"history_tool_call_cnt": -1}}, "parse_context.history_tool_call_cnt"),
    ],
)
@in_loop
async def test_a_context_that_says_more_than_a_chat_may_is_refused(
    tmp_path: Path, changes: dict[str, Any], param: str
) -> None:
    async with writing(tmp_path, "Yes.") as client:
        body = {"token_ids": [5], "sampling_params": {}, "output_mode": "derender"}
        body |= {"parse_context": {}, **changes}
        response = await client.post(TOKENS, json=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param, response.text
        assert client.server.admission.num_open == 0


@in_loop
async def test_a_model_without_parts_needs_no_context(tmp_path: Path) -> None:
    async with serving(make_directory(tmp_path)) as client:
        sampling = {"max_tokens": 6, "temperature": 0}
        body = {"token_ids": [5, 6], "sampling_params": sampling}
        text = (await client.post(TOKENS, json={**body, "output_mode": "text"})).json()
        made = (await client.post(TOKENS, json={**body, "output_mode": "derender"})).json()
        assert made["output_mode"] == "derender"
        (choice,), (wanted,) = made["choices"], text["choices"]
        assert choice["message"]["content"] == wanted["text"]
        assert choice["token_ids"] == wanted["token_ids"]


@in_loop
async def test_hidden_reasoning_is_in_no_token_of_an_answer(tmp_path: Path) -> None:
    async with writing(tmp_path, f"{THOUGHT}It is 3 degrees.") as client:
        body = {"messages": MESSAGES, "include_reasoning": False, "return_token_ids": True}
        body |= LIKELY
        whole = (await client.post(PATH, json=body)).json()
        assert (whole["choices"][0]["logprobs"], whole["choices"][0]["token_ids"]) == (None, None)
        assert len(whole["warnings"]) == 1
        stream = await client.post(PATH, json={**body, "stream": True})
        parts = events(stream.text)
        assert any("warnings" in part for part in parts)
        assert not any(
            choice.get("logprobs") or choice.get("token_ids")
            for part in parts
            for choice in part["choices"]
        )
        request = await rendered(client, {**body, "include_reasoning": True})
        given = (await client.post(TOKENS, json=request)).json()
        asked = {"chat_request": body, "generate_response": given}
        made = (await client.post(f"{PATH}/derender", json=asked)).json()
        assert (made["choices"][0]["logprobs"], made["choices"][0]["token_ids"]) == (None, None)
        assert made["choices"][0]["message"]["content"] == "It is 3 degrees."


@in_loop
async def test_a_limit_that_is_left_out_is_the_end_of_the_context(tmp_path: Path) -> None:
    async with serving(make_directory(tmp_path)) as client:
        sampling = {"ignore_eos": True, "temperature": 0}
        made = (
            await client.post(TOKENS, json={"token_ids": [5], "sampling_params": sampling})
        ).json()
        (choice,) = made["choices"]
        assert choice["finish_reason"] == "length"
        assert len(choice["token_ids"]) + 1 == client.server.llm.model.facts.longest_tokens
