"""A stream continues at any position on another connection, with no token lost or repeated."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.client.durable.records import Began, decode
from tests.client.durable.make import read
from tests.server.durable.make import (
    OTHER_KEY,
    Gate,
    Received,
    durable,
    in_loop,
    received,
    step_by_step,
)
from tests.server.make import Client

COMPLETION = {"prompt": "The quick", "max_tokens": 20, "stream": True, "return_token_ids": True}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "stream": True}
LOGPROBS = {**COMPLETION, "logprobs": 2, "temperature": 0.7}
MANY = {**COMPLETION, "prompt": ["The quick", "brown"], "n": 2, "temperature": 0.9}
STOPPED = {**COMPLETION, "max_tokens": 60, "stop": ["e", "x", "B"], "temperature": 1.2, "seed": 3}
ECHOED = {**COMPLETION, "echo": True, "logprobs": 1, "temperature": 0.5}
USAGE = {**CHAT, "stream_options": {"include_usage": True}, "logprobs": True, "top_logprobs": 1}
ECHOED_CHAT = {
    **CHAT,
    "messages": [*CHAT["messages"], {"role": "assistant", "content": "Well"}],  # type: ignore[misc]
    "echo": True,
    "continue_final_message": True,
    "add_generation_prompt": False,
    "n": 2,
    "temperature": 0.8,
}
ALL = {
    "completion": ("/v1/completions", COMPLETION),
    "chat": ("/v1/chat/completions", CHAT),
    "logprobs": ("/v1/completions", LOGPROBS),
    "many": ("/v1/completions", MANY),
    "stopped": ("/v1/completions", STOPPED),
    "echoed": ("/v1/completions", ECHOED),
    "echoed chat": ("/v1/chat/completions", ECHOED_CHAT),
    "usage": ("/v1/chat/completions", USAGE),
}


async def begun(
    client: Client, path: str, body: dict[str, Any], name: str, gate: Gate | None = None
) -> Received:
    post = asyncio.ensure_future(client.post(path, json=body, headers={"x-request-id": name}))
    response = await (post if gate is None else step_by_step(client, gate, post))
    assert response.status_code == 200, response.text
    assert response.headers["x-request-id"] == name
    return received(response.text)


async def continued(client: Client, name: str, position: str) -> Received:
    response = await client.get(f"/v1/streams/{name}", params={"from": position})
    assert response.status_code == 200, response.text
    assert response.headers["x-request-id"] == name
    return received(response.text)


def check_rest(whole: Received, rest: Received, num_known: int) -> None:
    """Check that a client that knows the first events has all when it has the rest."""
    assert rest.is_ended
    known = Received(whole.events[:num_known])
    together = Received(known.events + rest.events)
    for index in range(4):
        assert together.text(index) == whole.text(index)
        assert together.tokens(index) == whole.tokens(index)
    assert joined(together.events) == joined(whole.events)


def joined(events: list[tuple[str | None, Any]]) -> dict[int, list[Any]]:
    """Return what events say of each answer, since they may be divided in another way."""
    answers: dict[int, list[Any]] = {}
    for _, event in events:
        for choice in event["choices"]:
            said = answers.setdefault(choice["index"], [])
            logprobs = choice.get("logprobs") or {}
            for place, token in enumerate(logprobs.get("tokens") or ()):
                values = [logprobs[name][place] for name in ("token_logprobs", "text_offset")]
                said.append((token, *values, str(logprobs["top_logprobs"][place])))
            said += [str(each) for each in logprobs.get("content") or ()]
            if choice["finish_reason"] is not None:
                said += [choice["finish_reason"], choice["stop_reason"]]
        same = {name: event[name] for name in ("id", "model", "created", "object")}
        assert same == {name: events[0][1][name] for name in same}
    return answers


@pytest.mark.parametrize("kind", ALL)
@in_loop
async def test_the_rest_of_an_ended_stream_follows_every_position(
    directory: Path, tmp_path: Path, kind: str
) -> None:
    path, body = ALL[kind]
    gate = Gate(0)
    async with durable(directory, tmp_path / "journal", gate.runner) as client:
        whole = await begun(client, path, body, "one", gate)
        assert whole.is_ended
        assert len(whole.events) > 12
        for num_known in range(len(whole.events) + 1):
            known = Received(whole.events[:num_known])
            check_rest(whole, await continued(client, "one", known.last_id), num_known)


@pytest.mark.parametrize("kind", ALL)
@in_loop
async def test_a_server_that_was_killed_continues_from_every_record(
    directory: Path, tmp_path: Path, kind: str
) -> None:
    """The clients know all of the stream, half of it and none, and the journal every part."""
    path, body = ALL[kind]
    journal = tmp_path / "journal"
    gate = Gate(0)
    async with durable(directory, journal, gate.runner) as client:
        whole = await begun(client, path, body, "one", gate)
    data = journal.read_bytes()
    for end in range(len(data), 0, -max(1, len(data) // 23)):
        journal.write_bytes(data[:end])
        records = [decode(payload) for payload in read(data[:end])[1]]
        has_begun = any(isinstance(record, Began) for record in records)
        async with durable(directory, journal) as client:
            for num_known in (0, len(whole.events) // 2, len(whole.events)):
                known = Received(whole.events[:num_known])
                position = {"from": known.last_id}
                response = await client.get("/v1/streams/one", params=position)
                assert response.status_code == (200 if has_begun else 404)
                if has_begun:
                    check_rest(whole, received(response.text), num_known)


@in_loop
async def test_only_the_key_that_sent_a_request_can_continue_it(
    directory: Path, tmp_path: Path
) -> None:
    async with durable(directory, tmp_path / "journal") as client:
        await begun(client, "/v1/completions", COMPLETION, "mine")
        headers = {"authorization": f"Bearer {OTHER_KEY}"}
        response = await client.get("/v1/streams/mine", headers=headers)
        unknown = await client.get("/v1/streams/unknown", headers=headers)
        assert response.status_code == unknown.status_code == 404
        body = response.json()["error"]["message"].replace("mine", "unknown")
        assert body == unknown.json()["error"]["message"]
        headers["x-request-id"] = "mine"
        response = await client.post("/v1/completions", json=COMPLETION, headers=headers)
        assert response.status_code == 200  # the id is another key's, and says nothing to this one
