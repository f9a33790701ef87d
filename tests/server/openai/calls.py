"""One request to /v1/completions, each to a server of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.server.engine import FakeEngine
from tests.server.make import Client, events, serving

PROMPT = "The quick"


def run(directory: Path, engine: FakeEngine | None = None, **fields: Any) -> Any:
    """Return the JSON of the answer."""

    async def main() -> Any:
        async with serving(directory, engine) as client:
            return await client.complete(**fields)

    return asyncio.run(main())


def error_of(directory: Path, **fields: Any) -> Any:
    """Return the error that the answer holds."""
    body = run(directory, **fields)
    assert set(body) == {"error"}, body
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return body["error"]


async def streamed(client: Client, path: str = "/v1/completions", **fields: Any) -> list[Any]:
    """Return the chunks of a stream."""
    body = {"stream": True, **fields}
    if path == "/v1/completions":
        body.setdefault("prompt", PROMPT)
    return events((await client.post(path, json=body)).text)
