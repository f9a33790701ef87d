"""pydantic-ai: an agent with two tools, run whole and as a stream, with its reasoning."""

from __future__ import annotations

import asyncio
import sys

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, ThinkingPart, ToolCallPart
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, KEY = sys.argv[1:3]
ANSWER = "It is 3 degrees in Oslo."


def make_agent(called: list[str]) -> Agent:
    """Return an agent that notes the calls of its tools."""
    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)
    agent = Agent(OpenAIChatModel("tiny", provider=provider))

    @agent.tool_plain
    def weather(city: str) -> str:
        """Return the weather of a city."""
        called.append(city)
        return f"3 degrees in {city}"

    @agent.tool_plain
    def clock() -> str:
        """Return the time of this day."""
        called.append("clock")
        return "noon"

    return agent


async def streamed(agent: Agent) -> str:
    """Return the answer of a run whose answers are streamed."""
    async with agent.run_stream("How warm is it in Oslo?") as run:
        return await run.get_output()


def main() -> None:
    """Run the agent in both ways."""
    called: list[str] = []
    result = make_agent(called).run_sync("How warm is it in Oslo?")
    assert result.output == ANSWER
    assert sorted(called) == ["Oslo", "clock"]
    first = next(each for each in result.all_messages() if isinstance(each, ModelResponse))
    thoughts = [part.content for part in first.parts if isinstance(part, ThinkingPart)]
    assert thoughts, "the agent receives the reasoning"
    assert thoughts[0].strip() == "I need the weather."
    assert len([part for part in first.parts if isinstance(part, ToolCallPart)]) == 2
    print("whole runs are well")
    text = asyncio.run(streamed(make_agent(called)))
    # This client takes the first text of a stream for the answer, although calls follow it.
    assert text == "I look.", text
    print("all is well")


main()
