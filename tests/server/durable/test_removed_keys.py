"""The journal's requests of keys that are no more: the next server computes none of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from octavo.dialects.responses.background import recover
from tests.server.durable.make import KEY, OTHER_KEY, Gate, durable, in_loop, service_of
from tests.server.make import until
from tests.server.responses.make import PATH
from tests.server.responses.test_background import BACK


@in_loop
async def test_requests_of_a_removed_key_do_not_run_on(directory: Path, tmp_path: Path) -> None:
    """Each key has a stream, and a response in the background."""
    journal, gate = tmp_path / "journal", Gate(0)
    options: dict[str, Any] = {"responses_store": tmp_path / "responses"}
    body = {"prompt": "The quick", "max_tokens": 24, "stream": True}
    async with durable(directory, journal, gate.runner, **options) as client:
        streams = []
        for key in (KEY, OTHER_KEY):
            client.headers["authorization"] = f"Bearer {key}"
            streams.append(asyncio.ensure_future(client.post("/v1/completions", json=body)))
            assert (await client.post(PATH, json=BACK)).status_code == 200
        await until(lambda: len(service_of(client).requests) == 4)
        await service_of(client).requests.writer.written()
        recorded = journal.read_bytes()
        client.server.is_draining = True  # as the end of the server, before the file is closed
        closing = asyncio.ensure_future(client.server.responses.close())
        gate.open()
        await closing
        await asyncio.gather(*streams)
    journal.write_bytes(recorded)
    async with durable(directory, journal, api_keys=(OTHER_KEY,), **options) as client:
        requests, access = service_of(client).requests, client.server.access
        assert len(requests) == 2
        await recover(client.server)
        assert all(access.knows(request.owner) for request in requests)
        unfinished = {entry.owner for entry in client.server.responses.unfinished()}
        assert all(map(access.knows, unfinished))
        await until(lambda: all(request.rested_at is not None for request in requests))
        # No client waits for their answers any more: they are background work of their keys.
        names = {name.removeprefix("background of ") for name in client.server.admission._queues}
        assert names == {request.owner for request in requests}
        await client.server.responses.close()
