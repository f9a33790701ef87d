"""openai's helpers for parsed answers, and langchain's answers and calls in a shape."""

from __future__ import annotations

import sys
from typing import Any, Literal

from langchain_openai import ChatOpenAI
from openai import OpenAI, pydantic_function_tool
from pydantic import BaseModel, ConfigDict, Field

URL, KEY = sys.argv[1:3]
QUESTION = "How warm is it?"


class Weather(BaseModel):
    """The weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Rome"]
    degrees: int = Field(ge=-9, le=9)
    is_sunny: bool


def parsed() -> None:
    """Let openai make models of answers, whole and streamed, and of a call's arguments."""
    client = OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=120)
    asked: dict[str, Any] = {
        "model": "tiny",
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 2000,
        "seed": 1,
    }
    whole = client.chat.completions.parse(**asked, response_format=Weather).choices[0]
    assert isinstance(whole.message.parsed, Weather)
    assert whole.finish_reason == "stop"
    with client.chat.completions.stream(**asked, response_format=Weather) as stream:
        kinds = {event.type for event in stream}
        last = stream.get_final_completion().choices[0].message.parsed
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds
    assert last == whole.message.parsed
    calls = client.chat.completions.parse(
        **asked, tools=[pydantic_function_tool(Weather)], tool_choice="required"
    ).choices[0]
    assert calls.message.tool_calls
    for call in calls.message.tool_calls:
        assert isinstance(call.function.parsed_arguments, Weather)


def main() -> None:
    """Run all checks of these clients."""
    parsed()
    model = ChatOpenAI(
        base_url=f"{URL}/v1",
        api_key=KEY,
        model="tiny",
        max_tokens=2000,
        max_retries=0,
        timeout=120,
        seed=2,
    )
    for method in ("json_schema", "function_calling"):
        shaped = model.with_structured_output(Weather, method=method)
        assert isinstance(shaped.invoke(QUESTION), Weather), method
        *_, last = shaped.stream(QUESTION)
        assert isinstance(last, Weather), method
    for choice in ("any", "Weather"):
        answer = model.bind_tools([Weather], tool_choice=choice).invoke(QUESTION)
        assert answer.tool_calls, answer
        assert not answer.invalid_tool_calls
        for call in answer.tool_calls:
            Weather(**call["args"])
    print("all is well")


main()
