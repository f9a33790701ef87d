"""Tools in chats: what requests may say about them, and calls in answers and streams."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.dialects.common.schema.chat import ChatRequest
from octavo.options.server import ServerSettings
from octavo.serving.answers.formats import choose_formats
from octavo.serving.schema.decode import decode_by_field
from octavo.transport.errors import ApiError
from tests.server.engine import FakeEngine
from tests.server.make import Client, events
from tests.server.openai.scripted import (
    CLOCK,
    MESSAGES,
    OSLO,
    PATH,
    TEMPLATES,
    TOOLS,
    WEATHER,
    Script,
    called,
    message_of,
    writing,
)

Test = Callable[[Client], Awaitable[None]]


def run(tmp_path: Path, text: str, test: Test, **options: Any) -> None:
    """Run a test with a client of a server whose model writes this text."""

    async def main() -> None:
        async with writing(tmp_path, text, **options) as client:
            await test(client)

    asyncio.run(main())


@pytest.mark.parametrize("is_special", [True, False])
def test_a_call_is_no_text(tmp_path: Path, is_special: bool) -> None:
    """Marks may be special tokens, which text leaves out, or ordinary ones."""

    async def test(client: Client) -> None:
        message, finish = await message_of(client, tools=TOOLS)
        assert message["content"] is None
        (call,) = message["tool_calls"]
        assert call["type"] == "function"
        assert call["function"]["name"] == "weather"
        assert json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
        assert finish == "tool_calls"

    run(tmp_path, OSLO, test, is_special=is_special)


def test_text_stands_beside_several_calls(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        message, finish = await message_of(client, tools=TOOLS)
        assert message["content"] == "I look."
        names = [call["function"]["name"] for call in message["tool_calls"]]
        assert (names, finish) == (["weather", "clock"], "tool_calls")
        message, _ = await message_of(client, tools=TOOLS, parallel_tool_calls=False)
        names = [call["function"]["name"] for call in message["tool_calls"]]
        assert names == ["weather"]

    run(tmp_path, f"I look.{OSLO}\n{called('clock', {})}", test)


def test_without_tools_nothing_is_a_call(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        ways: list[dict[str, Any]] = [{}, {"tools": []}, {"tools": TOOLS, "tool_choice": "none"}]
        for fields in ways:
            message, finish = await message_of(client, **fields)
            assert ("tool_calls" in message, finish) == (False, "stop")
            assert message["content"] == OSLO

    run(tmp_path, OSLO, test, is_special=False)


def test_old_clients_get_functions(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        functions = [each["function"] for each in TOOLS]
        message, finish = await message_of(client, functions=functions)
        assert message["function_call"]["name"] == "weather"
        assert json.loads(message["function_call"]["arguments"]) == {"city": "Oslo"}
        assert ("tool_calls" in message, finish) == (False, "function_call")

    run(tmp_path, OSLO, test)


def test_a_call_that_is_cut_ends_by_its_length(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        message, finish = await message_of(client, tools=TOOLS, max_tokens=len(OSLO) - 40)
        (call,) = message["tool_calls"]
        assert call["function"]["name"] == "weather"
        assert finish == "length"

    run(tmp_path, OSLO, test)


def test_ids_of_calls_are_the_same_each_time_they_are_written(tmp_path: Path) -> None:
    """A client that continues a stream elsewhere has the same message."""

    async def test(client: Client) -> None:
        body = {"messages": MESSAGES, "tools": TOOLS, "n": 2}
        ids = []
        for name in ("first", "first", "second"):
            response = await client.post(PATH, json=body, headers={"x-request-id": name})
            choices = response.json()["choices"]
            calls = [call for each in choices for call in each["message"]["tool_calls"]]
            ids.append([call["id"] for call in calls])
            assert len(set(ids[-1])) == 4
            assert all(len(each) == 9 and each.isalnum() for each in ids[-1])
        assert ids[0] == ids[1] != ids[2]

    run(tmp_path, OSLO + called("clock", {}), test)


def test_what_is_sent_beside_calls_stays_right(tmp_path: Path) -> None:
    """Log-probabilities and token ids belong to all tokens, those of marks included."""

    async def test(client: Client) -> None:
        wanted = {"messages": MESSAGES, "tools": TOOLS, "logprobs": True, "return_token_ids": True}
        (choice,) = (await client.post(PATH, json=wanted)).json()["choices"]
        stream = await client.post(PATH, json={**wanted, "stream": True})
        token_ids: list[int] = []
        logprobs: list[Any] = []
        for chunk in events(stream.text):
            for each in chunk["choices"]:
                token_ids += each.get("token_ids") or []
                logprobs += (each.get("logprobs") or {"content": []})["content"]
        assert token_ids == choice["token_ids"]
        assert logprobs == choice["logprobs"]["content"]
        assert len(logprobs) == len(token_ids)
        assert "".join(each["token"] for each in logprobs) == f"Look:{OSLO}</s>"

    run(tmp_path, f"Look:{OSLO}", test)


def test_a_stop_string_ends_a_call(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        message, finish = await message_of(client, tools=TOOLS, stop=["Oslo"])
        assert finish in ("stop", "tool_calls")
        assert "Oslo" not in json.dumps(message)

    run(tmp_path, OSLO, test)


def test_the_prompt_has_tools_calls_and_results(tmp_path: Path) -> None:
    """A conversation is sent back as it came, with results of its calls."""

    async def test(client: Client) -> None:
        message, _ = await message_of(client, tools=TOOLS)
        (call,) = message["tool_calls"]
        result = {"role": "tool", "tool_call_id": "a", "content": "3 degrees"}
        for past in (
            [{**message, "tool_calls": [{"id": "a", **call}]}, result],
            [
                {"role": "assistant", "content": None, "function_call": call["function"]},
                {"role": "function", "name": "weather", "content": "3 degrees"},
            ],
        ):
            body = {"messages": [*MESSAGES, *past], "tools": TOOLS}
            said = (await client.post("/tokenize", json=body)).json()
            prompt = await client.post("/detokenize", json={"tokens": said["tokens"]})
            text = prompt.json()["prompt"]
            assert "<tools>" in text
            assert '"description": "The weather of a city."' in text
            assert f"assistant\n{OSLO}<|im_end|>" in text
            assert "<tool_response>\n3 degrees\n</tool_response>" in text
            answer = await client.post(PATH, json=body)
            assert answer.json()["usage"]["prompt_tokens"] == said["count"]

    run(tmp_path, OSLO, test)


def test_ids_of_other_servers_are_shortened_for_templates_that_need_it(tmp_path: Path) -> None:
    """Mistral's templates accept nine letters and digits and nothing else."""
    mistral = (TEMPLATES / "mistral.jinja").read_text("utf-8")

    async def test(client: Client) -> None:
        calls = [
            {"id": each, "function": {"name": "clock", "arguments": "{}"}}
            for each in ("call_0123456789abcdef", "abcDEF123")
        ]
        results = [{"role": "tool", "tool_call_id": each["id"], "content": "9"} for each in calls]
        past = {"role": "assistant", "tool_calls": calls}
        for kwargs in ({}, {"chat_template_kwargs": {"unused": ["x"] * 20_000}}):
            body = {"messages": [*MESSAGES, past, *results], "tools": TOOLS, **kwargs}
            tokens = (await client.post("/tokenize", json=body)).json()["tokens"]
            prompt = await client.post("/detokenize", json={"tokens": tokens})
            text = prompt.json()["prompt"]
            first, second = re.findall(r'"id": "([a-zA-Z0-9]{9})"', text)
            assert "call_0" not in text
            assert first != second == "abcDEF123"

    run(tmp_path, "Hello.", test, template=mistral)


NAMED = {"type": "function", "function": {"name": "weather"}}
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function"}]}, "tools[0].function"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "function", "function": {"name": "a\n"}}]}, "tools[0].function.name"),
    ({"tools": [{"type": "custom", "custom": {"name": "a"}}]}, "tools"),
    ({"tools": [WEATHER, CLOCK, WEATHER]}, "tools[2].function.name"),
    (
        {"tools": [{"function": {"name": "f", "parameters": {"type": "string"}}}]},
        "tools[0].function.parameters.type",
    ),
    ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools"),
    ({"tools": [{"function": {"name": "f", "description": "x" * 300_000}}]}, "tools"),
    ({"tools": [CLOCK] * 513}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": NAMED}, "tool_choice"),
    ({"tools": [CLOCK], "tool_choice": NAMED}, "tool_choice"),
    ({"tools": TOOLS, "tool_choice": {"type": "function"}}, "tool_choice.function"),
    ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools"),
    ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice"),
    ({"tools": TOOLS, "functions": [{"name": "f"}]}, "functions"),
    ({"tools": TOOLS, "function_call": {"name": "weather"}}, "function_call"),
    ({"functions": [{"name": "f"}], "tool_choice": "required"}, "tool_choice"),
    ({"functions": [{"name": "f"}, {"name": "f"}]}, "functions[1].name"),
    ({"function_call": {"name": "f"}}, "function_call"),
]


ANY_OF_THEM = {"type": "allowed_tools", "allowed_tools": {"mode": "any", "tools": [NAMED]}}


def test_wrong_tools_are_refused_with_what_is_possible_there() -> None:
    for fields, message in (
        (
            {"tool_choice": ANY_OF_THEM},
            "tool_choice.allowed_tools.mode: expected one of 'auto', 'required', got 'any'",
        ),
        (
            {"tool_choice": "all"},
            (
                "tool_choice: expected one of 'any', 'auto', 'none', 'required' or an object, "
                "got 'all'"
            ),
        ),
        (
            {"tools": [WEATHER, {"type": "web_search"}]},
            "tools[1].type: expected 'function', got 'web_search'",
        ),
        (
            {"tools": [{"type": "function", "name": "f", "parameters": {}}]},
            "tools[0].function is missing; name and parameters belong under function",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].function is missing"),
    ):
        body = json.dumps({"messages": MESSAGES, **fields}).encode()
        with pytest.raises(ApiError) as caught:
            decode_by_field(body, ChatRequest)
        assert caught.value.message == message
        assert caught.value.param == re.split(r":| is", message)[0]


def test_a_wrong_field_is_named(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        for fields, param in WRONG:
            response = await client.post(PATH, json={"messages": MESSAGES, **fields})
            assert response.status_code == 400, (fields, response.text)
            assert "(?!" not in response.text, "the pattern of names is in plain terms"
            found = response.json()["error"]["param"]
            assert (found or "").startswith(param), (fields, response.text)

    run(tmp_path, "Hello.", test)


def test_a_server_that_looks_for_no_calls_refuses_tools(tmp_path: Path) -> None:
    """An answer's calls would be text."""

    async def test(client: Client) -> None:
        response = await client.post(PATH, json={"messages": MESSAGES, "tools": TOOLS})
        error = response.json()["error"]
        assert (response.status_code, error["param"]) == (400, "tools")
        assert error["code"] == "unsupported_parameter"
        assert "--tool-call-parser none" in error["message"]

    run(tmp_path, "Hello.", test, tool_call_parser="none")


@pytest.mark.parametrize(
    ("template", "parser", "words"),
    [
        (
            "<tool_call> arguments tools",
            None,
            ["tool calls: the format is hermes, which", "reasoning: the chat template shows no"],
        ),
        ("tools", None, ["--reasoning-parser", "in no known format; they are shown in the system"]),
        ("", None, ["--reasoning-parser", "since the chat template does not know them"]),
        ("", "none", ["tool calls: none, as asked", "--reasoning-parser"]),
        (
            "",
            "hermes",
            ["hermes, as asked", "--reasoning-parser", "calls are in the format hermes"],
        ),
        (
            "<tool_call> arguments tools",
            "generic",
            ["generic, as asked", "--reasoning-parser", "are shown in the system message, and"],
        ),
    ],
)
def test_the_log_says_which_formats_were_found(
    caplog: pytest.LogCaptureFixture, template: str, parser: str | None, words: list[str]
) -> None:
    tokenizer: Any = SimpleNamespace(
        chat_templates={"default": template}, added_tokens={}, special_ids=()
    )
    with caplog.at_level(logging.INFO, "octavo"):
        choose_formats(ServerSettings(tool_call_parser=parser), tokenizer)
        choose_formats(ServerSettings(), tokenizer, generates=False)  # says nothing of answers
    messages = [each.getMessage() for each in caplog.records if each.name.startswith("octavo")]
    for message, part in zip(messages, words, strict=True):
        assert part in message


def test_past_calls_are_written_for_a_template_that_does_not_read_them(tmp_path: Path) -> None:
    """Calls come as the model writes them, or are refused where this is not known."""
    plain = "{% for message in messages %}<|im_start|>{{ message.content }}{% endfor %}"
    function = {"name": "weather", "arguments": '{"city":"Oslo"}'}
    call = {"id": "a", "function": function}

    async def test(client: Client) -> None:
        for kwargs in ({}, {"chat_template_kwargs": {"unused": ["x"] * 20_000}}):
            past = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
            body = {"messages": [*MESSAGES, past], **kwargs}
            tokens = (await client.post("/tokenize", json=body)).json()["tokens"]
            prompt = await client.post("/detokenize", json={"tokens": tokens})
            assert prompt.json()["prompt"].endswith(f"<|im_start|>I look.\n{OSLO}")
        wrong = {"role": "assistant", "tool_calls": [{"function": {**function, "arguments": "{"}}]}
        response = await client.post(PATH, json={"messages": [*MESSAGES, wrong]})
        where = "messages[1].tool_calls[0].function.arguments"
        assert response.json()["error"]["param"] == where

    run(tmp_path, "Hello.", test, template=plain, tool_call_parser="hermes")

    async def unknown(client: Client) -> None:
        past = {"role": "assistant", "tool_calls": [call]}
        response = await client.post(PATH, json={"messages": [*MESSAGES, past]})
        assert response.json()["error"]["param"] == "messages[1].tool_calls"

    run(tmp_path / "unknown", "Hello.", unknown, template=plain, tool_call_parser="none")


def test_tools_are_for_chats(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        error = (await client.complete(tools=TOOLS))["error"]
        assert error["param"] == "tools"
        assert "/v1/chat/completions" in error["message"]

    run(tmp_path, "Hello.", test)


def grammars(client: Client) -> list[str]:
    """Return the grammars that the engine has got since this was called last."""
    engine = client.server.llm
    assert isinstance(engine, FakeEngine)
    assert isinstance(engine.runner, Script)
    found, engine.runner.grammars = engine.runner.grammars, []
    return found


STRICT = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
FREELY = {"type": "allowed_tools", "allowed_tools": {"tools": [NAMED]}}


def test_what_must_be_called_is_a_grammar(tmp_path: Path) -> None:
    """The engine gets one where calls are required, named, restricted or strict."""

    async def test(client: Client) -> None:
        asked: dict[str, tuple[dict[str, Any], bool, bool]] = {  # with weather's and clock's calls
            "auto": ({}, False, False),
            "required": ({"tool_choice": "required"}, True, True),
            "any": ({"tool_choice": "any"}, True, True),
            "named": ({"tool_choice": NAMED}, True, False),
            "allowed, required": ({"tool_choice": ALLOWED}, True, False),
            "allowed, auto": ({"tool_choice": FREELY}, True, False),
            "strict": ({"tools": [STRICT, CLOCK]}, True, True),
            "none": ({"tools": [STRICT, CLOCK], "tool_choice": "none"}, False, False),
        }
        for name, (fields, has_weather, has_clock) in asked.items():
            body = {"messages": MESSAGES, "tools": TOOLS, "max_tokens": 1, **fields}
            response = await client.post(PATH, json=body)
            assert response.status_code == 200, (name, response.text)
            (grammar,) = grammars(client)
            assert ("weather" in grammar, "clock" in grammar) == (has_weather, has_clock), name
        old = {"functions": [each["function"] for each in TOOLS]}
        body = {"messages": MESSAGES, **old, "function_call": {"name": "clock"}, "max_tokens": 1}
        assert (await client.post(PATH, json=body)).status_code == 200
        (grammar,) = grammars(client)
        assert "clock" in grammar and "weather" not in grammar  # noqa: PT018

    run(tmp_path, OSLO, test)


def test_a_shape_leaves_room_for_calls_and_reasoning(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        shape = {"response_format": {"type": "json_object"}}
        for fields, has_calls in (({}, False), ({"tools": TOOLS}, True)):
            body = {"messages": MESSAGES, **shape, **fields, "max_tokens": 1}
            response = await client.post(PATH, json=body)
            assert response.status_code == 200, response.text
            (grammar,) = grammars(client)
            assert ("clock" in grammar) == has_calls
            assert grammar.index("%lark") < grammar.index('"object"'), "behind the reasoning"
        wrong = {"response_format": {"type": "json_object", "schema": {"type": "objct"}}}
        response = await client.post(PATH, json={"messages": MESSAGES, "tools": TOOLS, **wrong})
        assert response.json()["error"]["param"] == "response_format.schema.type", response.text

    run(tmp_path, OSLO, test)


UNIQUE = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


def test_schemas_of_tools_are_checked_where_they_are_enforced(tmp_path: Path) -> None:
    """A strict tool's schema is refused with its path, or else named in a warning."""

    async def test(client: Client) -> None:
        function = {"name": "f", "parameters": UNIQUE}
        where = "tools[1].function.parameters.properties.a.uniqueItems"
        tools = [CLOCK, {"function": {**function, "strict": True}}]
        response = await client.post(PATH, json={"messages": MESSAGES, "tools": tools})
        assert (response.status_code, response.json()["error"]["param"]) == (400, where)
        tools = [CLOCK, {"function": function}]
        asked = {"messages": MESSAGES, "tools": tools, "max_tokens": 1}
        free = (await client.post(PATH, json=asked)).json()
        assert not free.get("warnings")
        cut = (await client.post(PATH, json={**asked, "tool_choice": "required"})).json()
        (warning,) = cut["warnings"]
        assert warning.startswith(where)
        assert cut["choices"][0]["finish_reason"] == "length"
        assert cut["choices"][0]["message"]["content"] is None, "there is a call, or nothing"
        for choice, content in (("required", None), ("auto", "")):
            streamed = {**asked, "tool_choice": choice, "stream": True}
            chunks = events((await client.post(PATH, json=streamed)).text)
            first = next(each for each in chunks if each["choices"])["choices"][0]["delta"]
            assert first == {"role": "assistant", "content": content}
        old = {"functions": [{**function, "strict": True}]}
        response = await client.post(PATH, json={"messages": MESSAGES, **old})
        assert response.json()["error"]["param"].startswith("functions[0].parameters.prop")

    run(tmp_path, OSLO, test)


def test_a_large_request_with_tools_is_answered_the_same(tmp_path: Path) -> None:
    """A prompt worker reads it; the tools come back from there for the answer."""

    async def test(client: Client) -> None:
        many = ["x"] * 20_000
        for kwargs in ({}, {"chat_template_kwargs": {"unused": many}}):
            message, finish = await message_of(client, tools=TOOLS, **kwargs)
            assert message["tool_calls"][0]["function"]["name"] == "weather"
            assert finish == "tool_calls"

    run(tmp_path, OSLO, test)


@pytest.mark.parametrize(("wish", "num_calls"), [(None, 1), (False, 1), (True, 2)])
def test_a_named_tool_is_called_once_unless_more_are_wanted(
    tmp_path: Path, wish: bool | None, num_calls: int
) -> None:
    async def test(client: Client) -> None:
        named = {"type": "function", "function": {"name": "weather"}}
        fields = {} if wish is None else {"parallel_tool_calls": wish}
        message, _ = await message_of(client, tools=TOOLS, tool_choice=named, **fields)
        assert len(message["tool_calls"]) == num_calls

    run(tmp_path, f"{OSLO}\n{OSLO}", test)
