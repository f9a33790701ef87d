"""ollama with tools: the client describes functions, calls them, and sends their results."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import ollama

URL, KEY = sys.argv[1:3]


def weather(city: str) -> str:
    """Return the weather of a city.

    Args:
      city: The name of the city
    """
    assert city == "Oslo"
    return "3 degrees"


def clock() -> str:
    """Return the time of day in words."""
    return "noon"


TOOLS: dict[str, Callable[..., str]] = {"weather": weather, "clock": clock}


def main() -> None:
    """Hold the agent's conversation, whole and in lines."""
    client = ollama.Client(host=URL, headers={"authorization": f"Bearer {KEY}"})
    assert {"tools", "thinking"} <= set(client.show("tiny").capabilities or ())
    for stream in (False, True):
        messages: list[Any] = [{"role": "user", "content": "How warm is it in Oslo?"}]
        answer: Any = client.chat(
            "tiny", messages, tools=list(TOOLS.values()), think=True, stream=stream
        )
        parts = list(answer) if stream else [answer]
        thinking = "".join(part.message.thinking or "" for part in parts)
        assert thinking.strip() == "I need the weather."
        calls = [call for part in parts for call in part.message.tool_calls or ()]
        assert [call.function.name for call in calls] == ["weather", "clock"]
        messages.append({"role": "assistant", "content": "I look.", "tool_calls": calls})
        for call in calls:
            result = TOOLS[call.function.name](**call.function.arguments)
            messages.append({"role": "tool", "tool_name": call.function.name, "content": result})
        last = client.chat("tiny", messages, tools=list(TOOLS.values()))
        assert (last.message.content or "").strip() == "It is 3 degrees in Oslo."
    sys.stdout.write("all is well\n")


main()
