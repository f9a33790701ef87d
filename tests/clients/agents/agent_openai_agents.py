"""OpenAI's agents SDK over the Responses API: tools, streams, and a conversation that is kept."""

from __future__ import annotations

import asyncio
import sys

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.models.openai_responses import OpenAIResponsesModel
from openai import AsyncOpenAI

URL, KEY = sys.argv[1:3]
QUESTION, ANSWER = "How warm is it in Oslo?", "It is 3 degrees in Oslo."
called: list[str] = []


@function_tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    called.append(city)
    return f"3 degrees in {city}"


@function_tool
def clock() -> str:
    """Return the time of this day."""
    called.append("clock")
    return "noon"


async def main() -> None:
    """Run the agent whole, as a stream, and from the responses that are kept."""
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY)
    model = OpenAIResponsesModel(model="tiny", openai_client=client)
    agent = Agent(name="agent", instructions="Help.", model=model, tools=[weather, clock])
    result = await Runner.run(agent, QUESTION)
    assert result.final_output == ANSWER, result.final_output
    assert sorted(called) == ["Oslo", "clock"], called
    kinds = [item.type for item in result.new_items]
    assert "reasoning_item" in kinds, kinds
    print("whole runs are well")
    streamed = Runner.run_streamed(agent, QUESTION)
    text = ""
    async for event in streamed.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    assert streamed.final_output == ANSWER, streamed.final_output
    assert text.endswith(ANSWER), text
    print("streams are well")
    again = await Runner.run(agent, QUESTION, auto_previous_response_id=True)
    assert again.final_output == ANSWER, again.final_output
    more = await Runner.run(agent, "And now?", previous_response_id=again.last_response_id)
    assert more.final_output == ANSWER, more.final_output
    print("all is well")


asyncio.run(main())
