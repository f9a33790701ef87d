"""The default model, whose template knows no tools, calls them in every dialect.

It is small, and its answers are what the grammar makes of them: each call must be valid.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from octavo.api.async_llm import AsyncLLM
from octavo.loader.errors import DownloadError
from octavo.serving.server import Server
from tests.server.anthropic import test_messages as anthropic
from tests.server.make import Client, patient
from tests.server.openai.scripted import message_of
from tests.server.responses import make as responses

MOST = 64  # tokens of an answer; the longest call fits
WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
MAIL = {
    "type": "object",
    "properties": {
        "to": {"type": "string", "pattern": "^[a-z]{1,9}@[a-z]{1,9}\\.org$"},
        "priority": {"type": "integer", "minimum": 1, "maximum": 5},
    },
    "required": ["to", "priority"],
    "additionalProperties": False,
}
SCHEMAS = {"get_weather": WEATHER, "send_mail": MAIL}
ABOUT = {"get_weather": "The weather of a city.", "send_mail": "Sends an e-mail."}
QUESTION = "How warm is it in Rome?"

Calls = list[tuple[str, Any]]
Ask = Callable[[Client, str, bool], Awaitable[Calls]]


def past(city: str) -> list[dict[str, Any]]:
    """Return turns with a call and its result, which a small model imitates."""
    arguments = json.dumps({"city": city})
    call = {"id": city, "function": {"name": "get_weather", "arguments": arguments}}
    return [
        {"role": "user", "content": f"How warm is it in {city}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": city, "content": "12 degrees"},
        {"role": "assistant", "content": f"It is 12 degrees in {city}."},
    ]


def functions(*, strict: bool) -> list[dict[str, Any]]:
    """Return the tools as OpenAI's requests describe them."""
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": ABOUT[name],
                "parameters": schema,
                "strict": strict,
            },
        }
        for name, schema in SCHEMAS.items()
    ]


def valid(calls: Calls) -> Calls:
    """Return calls after checking each by its tool's schema."""
    for name, arguments in calls:
        Draft202012Validator(SCHEMAS[name]).validate(arguments)
    return calls


CHOICES = {
    "auto": "auto",
    "none": "none",
    "required": "required",
    "named": {"type": "function", "function": {"name": "send_mail"}},
    "allowed": {
        "type": "allowed_tools",
        "allowed_tools": {
            "mode": "required",
            "tools": [{"type": "function", "function": {"name": "send_mail"}}],
        },
    },
}
NUM_CALLS = {"none": (0, 0), "auto": (0, 9), "required": (1, 9), "named": (1, 1), "allowed": (1, 9)}


async def chat(client: Client, choice: str, is_one: bool) -> Calls:
    """Return the calls of a chat, whole and in a stream; `is_one`: no parallel calls."""
    message, _ = await message_of(
        client,
        messages=[{"role": "user", "content": QUESTION}],
        tools=functions(strict=is_one),
        tool_choice=CHOICES[choice],
        max_tokens=MOST,
        temperature=0,
        **({"parallel_tool_calls": False} if is_one else {}),
    )
    calls = [each["function"] for each in message.get("tool_calls") or ()]
    return [(each["name"], json.loads(each["arguments"])) for each in calls]


async def respond(client: Client, choice: str, is_one: bool) -> Calls:
    """Return the calls of a response, whole and in a stream."""
    wanted: Any = CHOICES[choice]
    if choice == "named":
        wanted = {"type": "function", "name": "send_mail"}
    elif choice == "allowed":
        tools = [{"type": "function", "name": "send_mail"}]
        wanted = {"type": "allowed_tools", "mode": "required", "tools": tools}
    body: dict[str, Any] = {
        "input": QUESTION,
        "tools": [{"type": "function", **each["function"]} for each in functions(strict=is_one)],
        "tool_choice": wanted,
        "max_output_tokens": MOST,
        "temperature": 0,
    }
    if is_one:
        body["parallel_tool_calls"] = False
    whole = (await client.post(responses.PATH, json=body)).json()
    stream = await client.post(responses.PATH, json={**body, "stream": True})
    streamed = responses.assembled(responses.events_of(stream.text))
    assert responses.said(streamed) == responses.said(whole)
    calls = [each for each in whole["output"] if each["type"] == "function_call"]
    return [(each["name"], json.loads(each["arguments"])) for each in calls]


async def message(client: Client, choice: str, is_one: bool) -> Calls:
    """Return the calls of Anthropic's dialect, whole and in a stream."""
    kinds: dict[str, dict[str, Any]] = {
        "required": {"type": "any"},
        "named": {"type": "tool", "name": "send_mail"},
    }
    wanted = kinds.get(choice, {"type": choice})
    if is_one and choice != "none":
        wanted = {**wanted, "disable_parallel_tool_use": True}
    tools = [
        {"name": name, "description": ABOUT[name], "input_schema": schema}
        for name, schema in SCHEMAS.items()
    ]
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": tools,
        "tool_choice": wanted,
        "max_tokens": MOST,
        "temperature": 0,
    }
    whole = (await client.post(anthropic.PATH, json=body)).json()
    stream = await client.post(anthropic.PATH, json={**body, "stream": True})
    streamed = anthropic.assembled(anthropic.events_of(stream.text))
    found = [
        [(one["name"], one["input"]) for one in each["content"] if one["type"] == "tool_use"]
        for each in (whole, streamed)
    ]
    assert found[0] == found[1]
    return found[0]


async def ollama(client: Client, choice: str, is_one: bool) -> Calls:
    """Return the calls of Ollama's dialect, whole and in lines."""
    body: dict[str, Any] = {
        "model": "smollm2",
        "messages": [*past("Oslo"), {"role": "user", "content": QUESTION}],
        "tools": functions(strict=False),
        "options": {"num_predict": MOST, "temperature": 0},
    }
    for turn in body["messages"]:
        for call in turn.get("tool_calls") or ():
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    whole = (await client.post("/api/chat", json={**body, "stream": False})).json()
    stream = await client.post("/api/chat", json=body)
    lines = [json.loads(line)["message"] for line in stream.text.splitlines()]
    found = [
        [call["function"] for each in turns for call in each.get("tool_calls") or ()]
        for turns in ([whole["message"]], lines)
    ]
    assert found[0] == found[1]
    return [(each["name"], each["arguments"]) for each in found[0]]


ASKED: list[tuple[Ask, str]] = [
    *itertools.product((chat, respond), CHOICES),
    *itertools.product((message,), ("auto", "none", "required", "named")),
    (ollama, "auto"),
]


async def imitate(client: Client) -> None:
    """Check answers with a free choice: the model calls where it is fit, and answers else."""
    history = [*past("Oslo"), *past("Lima")]
    for question, names in (
        (QUESTION, ["get_weather"]),
        ("Send a mail to ann@home.org.", ["send_mail"]),
        ("What is 2+2?", []),
    ):
        answer, finish = await message_of(
            client,
            messages=[*history, {"role": "user", "content": question}],
            tools=functions(strict=False),
            max_tokens=MOST,
            temperature=0,
        )
        calls = [each["function"] for each in answer.get("tool_calls") or ()]
        valid([(each["name"], json.loads(each["arguments"])) for each in calls])
        assert [each["name"] for each in calls] == names, answer
        assert finish == ("tool_calls" if names else "stop")
        assert bool(answer["content"]) == (not names)


async def combine(client: Client) -> None:
    """Check several answers to a prompt, with log-probabilities and a shape of the text."""
    shape = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": functions(strict=False),
        "n": 4,
        "seed": 5,
        "temperature": 1.5,
        "logprobs": True,
        "max_tokens": MOST,
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": shape}},
    }
    for choice in ("auto", "required"):
        answer = await client.post("/v1/chat/completions", json={**body, "tool_choice": choice})
        for each in answer.json()["choices"]:
            assert each["logprobs"]["content"]
            if each["finish_reason"] == "length":
                continue
            text, calls = each["message"]["content"], each["message"].get("tool_calls") or []
            named = [(one["function"]["name"], one["function"]["arguments"]) for one in calls]
            valid([(name, json.loads(arguments)) for name, arguments in named])
            assert bool(calls) != bool(text)
            if text:
                Draft202012Validator(shape).validate(json.loads(text))


@pytest.mark.slow
def test_every_choice_in_every_dialect_gives_valid_calls() -> None:
    """Each is asked for as a whole and as a stream, with and without parallel calls."""
    try:
        llm = AsyncLLM("smollm2", max_model_len=2048, max_num_seqs=8)
    except DownloadError as error:
        pytest.skip(str(error))

    async def check(client: Client, ask: Ask, choice: str, is_one: bool) -> None:
        calls = valid(await ask(client, choice, is_one))
        fewest, most = NUM_CALLS[choice]
        assert fewest <= len(calls) <= (min(most, 1) if is_one else most), (ask, choice, calls)
        if choice in ("named", "allowed"):
            assert {name for name, _ in calls} == {"send_mail"}

    async def main() -> None:
        llm.attach()
        async with Client(Server(llm, patient())) as client:
            try:
                await asyncio.gather(
                    *(
                        check(client, ask, choice, bool(index % 2))
                        for index, (ask, choice) in enumerate(ASKED)
                    ),
                    imitate(client),
                    combine(client),
                )
            finally:
                await client.server.prompt_pool.close()

    try:
        asyncio.run(main())
    finally:
        llm.close()
