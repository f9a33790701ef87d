"""Streams with an adapter that are continued after their adapter's name has changed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from octavo.options.named_adapters import NamedAdapter
from tests.server.adapters.make import write_adapter
from tests.server.durable.make import Gate, durable, in_loop, received, service_of
from tests.server.make import until

STREAM = {
    "prompt": "x",
    "max_tokens": 24,
    "temperature": 0,
    "stream": True,
    "return_token_ids": True,
}
NAMED = {"x-request-id": "one"}


@pytest.mark.parametrize("change", ["reload", "unload"])
@in_loop
async def test_a_stream_goes_on_with_the_adapter_that_it_began_with(
    directory: Path, tmp_path: Path, change: str
) -> None:
    gate, place = Gate(8), write_adapter(tmp_path / "sql", 1)
    engine = {"max_loras": 2}
    async with durable(directory, tmp_path / "journal", gate.runner, engine) as client:
        service, registry = service_of(client), client.server.adapters
        named, body = NamedAdapter("sql", str(place)), {**STREAM, "model": "sql"}
        await registry.add(named, "operator")
        post = client.post("/v1/completions", json=body, headers=NAMED)
        leaving = asyncio.ensure_future(post)
        await until(lambda: any(each.answers[0].tokens for each in service.requests))
        leaving.cancel()
        (request,) = service.requests
        await until(lambda: request.rested_at is not None)
        write_adapter(place, 2)
        if change == "reload":
            await registry.add(named, "operator", in_place=True)
        else:
            await registry.remove("sql")
        gate.open()
        again = received((await client.post("/v1/completions", json=body, headers=NAMED)).text)
        rest = received((await client.get("/v1/streams/one?from=3")).text)
        assert again.is_ended
        assert rest.tokens() == again.tokens()[3:]
        fresh = await client.post("/v1/completions", json=body, headers={"x-request-id": "two"})
        if change == "reload":
            assert received(fresh.text).tokens() != again.tokens()
        else:
            assert (fresh.status_code, fresh.json()["error"]["code"]) == (404, "model_not_found")
        other = await client.post("/v1/completions", json={**body, "seed": 1}, headers=NAMED)
        assert other.json()["error"]["code"] == "request_id_in_use"
        write_adapter(place, 1)  # what an undisturbed stream has
        await registry.add(named, "operator", in_place=True)
        whole = received((await client.post("/v1/completions", json=body)).text)
        assert again.tokens() == whole.tokens()
