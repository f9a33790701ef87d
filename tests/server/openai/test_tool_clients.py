"""The openai client's own types and helpers for tools and reasoning, against a scripted model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.server.make import listening
from tests.server.openai.scripted import AGENT, MESSAGES, TOOLS, make_files, scripted_engine
from tests.server.openai.test_openai_client import client_of

ASKED: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "tools": TOOLS}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[OpenAI]:
    """The client of a server whose model is an agent with two tools."""
    make_files(tmp_path)
    engine = scripted_engine(tmp_path, AGENT)
    with listening(tmp_path, engine) as life, client_of(life.port) as client:
        yield client


def test_an_agent_calls_tools_and_answers(client: OpenAI) -> None:
    """The client checks each field of each answer against its types."""
    create: Any = client.chat.completions.create
    first = create(**ASKED).choices[0]
    assert first.finish_reason == "tool_calls"
    assert first.message.content == "I look."
    assert first.message.reasoning.strip() == "I need the weather."
    calls = first.message.tool_calls
    assert [call.function.name for call in calls] == ["weather", "clock"]
    assert json.loads(calls[0].function.arguments) == {"city": "Oslo"}
    results = [{"role": "tool", "tool_call_id": call.id, "content": "3"} for call in calls]
    sent_back = first.message.model_dump(exclude_none=True)
    answer = create(**{**ASKED, "messages": [*MESSAGES, sent_back, *results]})
    assert answer.choices[0].message.content == "It is 3 degrees in Oslo."
    assert answer.choices[0].finish_reason == "stop"
    details = answer.usage.completion_tokens_details
    assert 0 < details.reasoning_tokens < answer.usage.completion_tokens


def test_the_events_of_a_streamed_call(client: OpenAI) -> None:
    """The helper joins the deltas of calls, and reports each and its end."""
    names, pieces = [], ""
    stream: Any = client.chat.completions.stream(**ASKED)
    with stream as events:
        for event in events:
            if event.type == "tool_calls.function.arguments.delta" and event.index == 0:
                pieces += event.arguments_delta
                assert event.arguments == pieces
            elif event.type == "tool_calls.function.arguments.done":
                names.append(event.name)
        whole = events.get_final_completion().choices[0]
    assert names == ["weather", "clock"]
    assert json.loads(pieces) == {"city": "Oslo"}
    assert whole.finish_reason == "tool_calls"
    assert [call.function.name for call in whole.message.tool_calls] == names


def test_functions_of_old_clients(client: OpenAI) -> None:
    create: Any = client.chat.completions.create
    functions = [tool["function"] for tool in TOOLS]
    choice = create(model="tiny", messages=MESSAGES, functions=functions).choices[0]
    assert choice.finish_reason == "function_call"
    assert choice.message.function_call.name == "weather"
    sent_back = choice.message.model_dump(exclude_none=True)
    result = {"role": "function", "name": "weather", "content": "3"}
    messages = [*MESSAGES, sent_back, result]
    answer = create(model="tiny", messages=messages, functions=functions).choices[0]
    assert answer.message.content == "It is 3 degrees in Oslo."


class weather(BaseModel):  # noqa: N801 (the tool's name)
    """The weather of a city."""

    city: str


def test_arguments_are_parsed_into_a_model(client: OpenAI) -> None:
    """The parsing helper sends strict tools and reads their arguments."""
    import openai

    tools: Any = [openai.pydantic_function_tool(weather)]
    asked: Any = {"model": "tiny", "messages": MESSAGES, "tools": tools}
    call = client.chat.completions.parse(**asked).choices[0].message.tool_calls
    assert call is not None
    assert call[0].function.parsed_arguments == weather(city="Oslo")
