"""Responses in the background: followed, cancelled, deleted, and continued by their number."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.server.durable.make import Gate, durable, in_loop, step_by_step
from tests.server.engine import FakeEngine
from tests.server.make import LIMIT, Client, serving, until
from tests.server.openai.scripted import AGENT, ROOM, Script, make_files
from tests.server.responses.make import PATH, assembled, events_of, said, text_of

LONG: dict[str, Any] = {"input": "Hello", "max_output_tokens": 30, "temperature": 0}
BACK: dict[str, Any] = {**LONG, "background": True}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": name, "parameters": {"type": "object"}}
    for name in ("weather", "clock")
]


async def ended(client: Client, name: str) -> dict[str, Any]:
    """Return a response when it has ended."""
    async with asyncio.timeout(300):
        while True:
            response: dict[str, Any] = (await client.get(f"{PATH}/{name}")).json()
            if response["status"] not in ("queued", "in_progress"):
                return response
            await asyncio.sleep(0.005)


async def events_after(client: Client, name: str, number: int | None = None) -> list[Any]:
    """Return the events of a response behind the one of this number."""
    query = {"stream": "true"} | ({} if number is None else {"starting_after": str(number)})
    answer = await client.get(f"{PATH}/{name}", params=query)
    assert answer.status_code == 200, answer.text
    return events_of(answer.text, 0 if number is None else number + 1)


@in_loop
async def test_a_response_in_the_background_can_be_followed(directory: Path) -> None:
    gate = Gate(0)
    async with serving(directory, FakeEngine(directory, runner=gate.runner)) as client:
        begun = (await client.post(PATH, json=BACK)).json()
        assert (begun["status"], begun["background"], begun["output"]) == ("queued", True, [])
        name = begun["id"]
        early = asyncio.ensure_future(events_after(client, name))
        gate.open(12)
        await until(lambda: gate.num_arrived > gate.num_passes)
        halfway = {"text": ""}

        async def has_text() -> bool:
            response = (await client.get(f"{PATH}/{name}")).json()
            halfway["text"] = text_of(response)
            return response["status"] == "in_progress" and bool(halfway["text"])

        async with asyncio.timeout(LIMIT):
            while not await has_text():
                await asyncio.sleep(0.005)
        gate.open()
        response = await ended(client, name)
        assert text_of(response).startswith(halfway["text"])
        whole = (await client.post(PATH, json=LONG)).json()
        assert said(response) == said(whole)
        events = await early
        assert assembled(json.loads(json.dumps(events))) == response
        await until(lambda: not client.server.responses.runs)
        for number in range(0, len(events), 7):
            assert await events_after(client, name, number) == events[number + 1 :]
        streamed = await client.post(PATH, json={**BACK, "stream": True})
        assert said(assembled(events_of(streamed.text))) == said(whole)
        for query in ({"starting_after": "x"}, {"stream": "maybe"}, {"since": "1"}):
            assert (await client.get(f"{PATH}/{name}", params=query)).status_code == 400
        refused = await client.get(f"{PATH}/{whole['id']}?stream=true")
        assert refused.json()["error"]["param"] == "stream"
        wrong = await client.post(PATH, json={**BACK, "max_output_tokens": 5, "min_tokens": 6})
        assert wrong.status_code == 400


@in_loop
async def test_a_response_in_the_background_can_be_cancelled_and_deleted(directory: Path) -> None:
    gate = Gate(0)
    async with serving(directory, FakeEngine(directory, runner=gate.runner)) as client:
        name = (await client.post(PATH, json=BACK)).json()["id"]
        follow = asyncio.ensure_future(events_after(client, name))
        gate.open(10)
        await until(lambda: gate.num_arrived > gate.num_passes)
        # The engine waits meanwhile: it could reach the answer's end before the cancellation comes.
        response = (await client.post(f"{PATH}/{name}/cancel")).json()
        gate.open()
        assert response["status"] == "cancelled"
        assert (await client.get(f"{PATH}/{name}")).json() == response
        assert assembled(await follow) == response
        again = await client.post(f"{PATH}/{name}/cancel")
        assert again.json() == response
        other = (answer := await client.post(PATH, json=LONG)).json()
        assert "id" in other, answer.text
        assert (await client.post(f"{PATH}/{other['id']}/cancel")).status_code == 400
        second = (await client.post(PATH, json=BACK)).json()["id"]
        assert (await client.delete(f"{PATH}/{second}")).json()["deleted"]
        assert (await client.get(f"{PATH}/{second}")).status_code == 404
        await until(lambda: not client.server.responses.runs and not client.server.active)


@in_loop
async def test_a_client_that_leaves_cancels_what_is_not_in_the_background(directory: Path) -> None:
    gate = Gate(3)
    async with serving(directory, FakeEngine(directory, runner=gate.runner)) as client:
        headers = {"x-request-id": "left"}
        post = asyncio.ensure_future(client.post(PATH, json=LONG, headers=headers))
        await until(lambda: gate.num_arrived > gate.num_passes)
        post.cancel()
        await asyncio.wait({post})
        gate.open()
        assert (await client.get(f"{PATH}/resp_left")).json()["status"] == "cancelled"


@in_loop
async def test_the_journal_continues_a_stream_behind_every_number(tmp_path: Path) -> None:
    """The numbers are the same, one step at a time and when many tokens come at once."""
    directory = make_files(tmp_path / "model")
    gate = Gate(0)
    runner = Script(directory, AGENT, gate.wait)
    body = {"input": "How warm is it in Oslo?", "tools": TOOLS, "stream": True}
    async with durable(directory, tmp_path / "journal", runner, ROOM) as client:
        headers = {"x-request-id": "one"}
        post = asyncio.ensure_future(client.post(PATH, json=body, headers=headers))
        response = await step_by_step(client, gate, post)
        events = events_of(response.text)
        kinds = [item["type"] for item in events[-1]["response"]["output"]]
        assert kinds == ["reasoning", "message", "function_call", "function_call"]
        assert len(events) > 50
        for number in range(0, len(events) - 1, 9):
            rest = await events_after(client, "resp_one", number)
            assert [(each["sequence_number"], each.get("delta")) for each in rest] == [
                (each["sequence_number"], each.get("delta")) for each in events[number + 1 :]
            ]
            assert said(rest[-1]["response"]) == said(events[-1]["response"])
        again = await client.post(PATH, json=body, headers=headers)
        assert events_of(again.text)[:-1] == events[:-1]
