"""Requests that fail leave nothing behind that only a garbage collection would free."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.serving.exchange import Exchange
from octavo.transport.errors import ApiError, ClientGoneError
from tests.server.make import serving, until


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Let nothing but counts of references free memory."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def living(*kinds: type) -> list[object]:
    """Return the objects of some types that have not been freed."""
    # Not isinstance: it asks lazy objects of other libraries for their class, which warn.
    return [each for each in gc.get_objects() if issubclass(type(each), kinds)]


@pytest.mark.usefixtures("no_collection")
@pytest.mark.parametrize("size", [1, 200_000])  # the second is read in a worker
def test_a_refused_request_is_freed_at_once(directory: Path, size: int) -> None:
    body = b'{"prompt": "x", "stop": [' + b",".join([b"{}"] * size) + b"]}"

    async def main() -> None:
        async with serving(directory) as client:
            response = await client.post("/v1/completions", content=body)
            assert response.status_code == 400
            await until(lambda: not living(ApiError, ClientGoneError, Exchange))

    asyncio.run(main())
