"""pydantic-ai: outputs that are models, by a call of a tool and as JSON, whole and streamed."""

from __future__ import annotations

import asyncio
import sys
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL, KEY = sys.argv[1:3]


class Weather(BaseModel):
    """The weather of a city."""

    model_config = ConfigDict(extra="forbid")
    city: Literal["Oslo", "Rome"]
    degrees: int = Field(ge=-9, le=9)
    is_sunny: bool


async def streamed(agent: Agent) -> Weather:
    """Return the output of a run whose answer is streamed."""
    async with agent.run_stream("How warm is it?") as run:
        return await run.get_output()


def main() -> None:
    """Run an agent with each kind of output."""
    provider = OpenAIProvider(base_url=f"{URL}/v1", api_key=KEY)
    model = OpenAIChatModel("tiny", provider=provider, settings={"max_tokens": 2000, "seed": 3})
    for output in (ToolOutput(Weather), NativeOutput(Weather)):
        agent = Agent(model, output_type=output, retries=0)
        assert isinstance(agent.run_sync("How warm is it?").output, Weather), output
        assert isinstance(asyncio.run(streamed(agent)), Weather), output
    print("all is well")


main()
