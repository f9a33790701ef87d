"""The usage in streams: at the end, in every chunk, or in all streams if the server so decides."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.server.make import Client, serving
from tests.server.openai.calls import streamed

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
BOTH = pytest.mark.parametrize("path", [COMPLETIONS, CHAT])


async def chunks(client: Client, path: str, options: dict[str, Any] | None) -> list[Any]:
    body: dict[str, Any] = {"max_tokens": 8, "stream_options": options}
    if path == CHAT:
        body["messages"] = [{"role": "user", "content": "Hello"}]
    return await streamed(client, path, **body)


@BOTH
def test_usage_is_streamed_when_asked_for(directory: Path, path: str) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            for nothing in (None, {}, {"include_usage": False}):
                plain = await chunks(client, path, nothing)
                assert all("usage" not in chunk and chunk["choices"] for chunk in plain)
            *first, last = await chunks(client, path, {"include_usage": True})
            assert all("usage" not in chunk and chunk["choices"] for chunk in first)
            assert last["choices"] == []
            assert last["usage"]["completion_tokens"] == 8

    asyncio.run(main())


@BOTH
def test_usage_in_every_chunk_needs_the_usage_at_the_end(directory: Path, path: str) -> None:
    async def main() -> None:
        async with serving(directory) as client:
            for alone in ({}, {"include_usage": False}, {"include_usage": None}):
                plain = await chunks(client, path, {"continuous_usage_stats": True, **alone})
                assert all("usage" not in chunk and chunk["choices"] for chunk in plain)
            both = {"continuous_usage_stats": True, "include_usage": True}
            check_every_chunk(await chunks(client, path, both))

    asyncio.run(main())


@BOTH
def test_the_server_may_send_usage_in_all_streams(directory: Path, path: str) -> None:
    async def main() -> None:
        async with serving(directory, enable_force_include_usage=True) as client:
            for options in (None, {"include_usage": False, "continuous_usage_stats": False}):
                check_every_chunk(await chunks(client, path, options))

    asyncio.run(main())


def check_every_chunk(chunks: list[Any]) -> None:
    """Assert that every chunk has the usage so far, that of the role included."""
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert chunks[-1]["choices"] == []
    assert counts[-1] == 8
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {
        chunks[-1]["usage"]["prompt_tokens"]
    }
    if "delta" in chunks[0]["choices"][0]:
        assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
        assert counts[0] == 0
