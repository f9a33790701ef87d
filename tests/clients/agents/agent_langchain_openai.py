"""langchain-openai: bound tools, their results, streamed calls, reasoning tokens."""

from __future__ import annotations

import sys

from langchain_core.messages import AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

URL, KEY = sys.argv[1:3]


@tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"3 degrees in {city}"


@tool
def clock() -> str:
    """Return the time of this day."""
    return "noon"


TOOLS = {"weather": weather, "clock": clock}


def main() -> None:
    """Run an agent's loop by hand, whole and in streams."""
    model = ChatOpenAI(
        base_url=f"{URL}/v1", api_key=KEY, model="tiny", max_retries=0, timeout=60
    ).bind_tools(list(TOOLS.values()))
    messages = [HumanMessage("How warm is it in Oslo?")]
    answer = model.invoke(messages)
    assert answer.content == "I look."
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [
        ("weather", {"city": "Oslo"}),
        ("clock", {}),
    ]
    assert not answer.invalid_tool_calls
    assert answer.response_metadata["finish_reason"] == "tool_calls"
    assert answer.usage_metadata["output_token_details"]["reasoning"] > 0

    whole: AIMessageChunk | None = None
    for chunk in model.stream(messages):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.content == answer.content
    assert [(call["name"], call["args"]) for call in whole.tool_calls] == [
        (call["name"], call["args"]) for call in answer.tool_calls
    ]

    messages.append(answer)
    for call in answer.tool_calls:
        result = TOOLS[call["name"]].invoke(call["args"])
        messages.append(ToolMessage(result, tool_call_id=call["id"]))
    final = model.invoke(messages)
    assert final.content == "It is 3 degrees in Oslo."
    assert not final.tool_calls
    print("all is well")


main()
