"""/v1/responses/input_tokens: the tokens that a request of /v1/responses has before its answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.server.engine import FakeEngine
from tests.server.make import Client, serving
from tests.server.openai.scripted import make_files
from tests.server.responses.make import PATH
from tests.server.responses.test_responses import HELLO, WEATHER, run

COUNT = f"{PATH}/input_tokens"


async def counted(client: Client, **body: Any) -> int:
    """Return the number that the route counts."""
    answer = await client.post(COUNT, json=body)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert made["object"] == "response.input_tokens"
    number: int = made["input_tokens"]
    return number


def test_the_count_is_that_of_the_response(directory: Path) -> None:
    async def test(client: Client) -> None:
        prompt: dict[str, Any] = {"input": "The dog", "instructions": "Be brief."}
        first = (await client.post(PATH, json={**HELLO, **prompt})).json()
        assert await counted(client, **prompt) == first["usage"]["input_tokens"]
        assert await counted(client, input="The dog") < first["usage"]["input_tokens"]
        more = {"input": "And the fox?", "previous_response_id": first["id"]}
        second = (await client.post(PATH, json={**HELLO, **more})).json()
        assert await counted(client, **more) == second["usage"]["input_tokens"]
        long = {"input": "The dog " * 40_000}  # read by a prompt worker
        assert await counted(client, **long) > 40_000
        assert await counted(client, instructions="Be brief.") > 0

    run(directory, test)


def test_tools_count(tmp_path: Path) -> None:
    directory = make_files(tmp_path)

    async def main() -> None:
        async with serving(directory, FakeEngine(directory)) as client:
            prompt: dict[str, Any] = {"input": "Hello", "tools": [WEATHER]}
            answer = (await client.post(PATH, json={**HELLO, **prompt})).json()
            assert await counted(client, **prompt) == answer["usage"]["input_tokens"]
            assert await counted(client, **prompt) > await counted(client, input="Hello")

    asyncio.run(main())


def test_a_wrong_request_is_refused_with_its_field(directory: Path) -> None:
    async def test(client: Client) -> None:
        for body, param in (
            ({"input": 5}, "input"),
            ({"input": "x", "previous_response_id": "resp_none"}, "previous_response_id"),
            ({"input": "x", "tool_choice": "required"}, "tool_choice"),
            ({"input": "x", "conversation": "conv_1"}, "conversation"),
        ):
            answer = await client.post(COUNT, json=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
        assert (await client.get(COUNT)).status_code == 405

    run(directory, test)
