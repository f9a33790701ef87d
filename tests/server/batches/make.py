"""Files of requests for the tests, and a server that answers them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import httpx

from octavo.server.routes import DEFAULT_DIALECT, ROUTES
from octavo.serving.batches.calls import Calls
from octavo.serving.batches.schema import ENDED
from octavo.serving.batches.service import Batches
from octavo.serving.batches.store import Store
from tests.server.engine import FakeEngine
from tests.server.make import Client, serving, until


def request(number: int, **fields: Any) -> dict[str, Any]:
    """Return a line of a file of requests; its answer has one token more than its number."""
    body = {"prompt": f"The quick {number}", "max_tokens": 1 + number % 7, **fields}
    return {
        "custom_id": f"line-{number}",
        "method": "POST",
        "url": "/v1/completions",
        "body": {"temperature": 0, "ignore_eos": True, **body},
    }


def text_of(lines: Sequence[Any]) -> str:
    """Return lines as the text of a file."""
    return "".join(json.dumps(line) + "\n" for line in lines)


def write(path: Path, lines: Sequence[Any]) -> Path:
    """Write a file of requests."""
    path.write_text(text_of(lines), "utf-8")
    return path


def read(path: Path) -> list[Any]:
    """Return the values of all lines."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def ids(lines: Sequence[Any]) -> list[str]:
    """Return the ids of results, in their order."""
    return [line["custom_id"] for line in lines]


@contextlib.asynccontextmanager
async def batching(
    directory: Path, where: Path, engine: FakeEngine | None = None, **options: Any
) -> AsyncIterator[Client]:
    """Serve with files and batches in a directory; leaving ends the server in mid-work."""
    async with serving(directory, engine, batch_dir=where, **options) as client:
        server = client.server
        calls = Calls(server, ROUTES, DEFAULT_DIALECT)
        server.batches = batches = Batches(server, Store(where), calls)
        batches.start()
        try:
            yield client
        finally:
            await batches.close()


async def upload(client: Client, text: str, **fields: str) -> httpx.Response:
    """Send a file of requests."""
    given = {"purpose": "batch", **fields}
    return await client.post("/v1/files", files={"file": ("in.jsonl", text)}, data=given)


async def begin(client: Client, lines: Sequence[Any] | str, **fields: Any) -> dict[str, Any]:
    """Begin a batch of these requests, and return it."""
    text = lines if isinstance(lines, str) else text_of(lines)
    sent = await upload(client, text)
    assert sent.status_code == 200, sent.text
    body = {"input_file_id": sent.json()["id"], "endpoint": "/v1/completions", **fields}
    answer = await client.post("/v1/batches", json=body)
    assert answer.status_code == 200, answer.text
    batch: dict[str, Any] = answer.json()
    assert batch["status"] == "validating"
    return batch


async def ended(client: Client, name: str) -> dict[str, Any]:
    """Wait until a batch has ended, and return it."""
    stored = batches_in(client).store.batches[name]
    await until(lambda: stored.batch.status in ENDED)
    batch: dict[str, Any] = (await client.get(f"/v1/batches/{name}")).json()
    return batch


async def lines_of(client: Client, file_id: str | None) -> list[Any]:
    """Return the lines of a file; none if there is no file."""
    if file_id is None:
        return []
    answer = await client.get(f"/v1/files/{file_id}/content")
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.text.splitlines()]


def batches_in(client: Client) -> Batches:
    """Return the batches of a client's server."""
    batches = client.server.batches
    assert batches is not None
    return batches
