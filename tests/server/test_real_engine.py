"""The whole path: HTTP, AsyncLLM, an engine in a process of its own, a tiny real model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo.api.async_llm import AsyncLLM
from octavo.serving.server import Server
from tests.api.tiny import make_model
from tests.client import clients
from tests.server.make import Client, events, patient, until

pytest.importorskip("torch")


def has_begun(client: Client) -> bool:
    """Return whether the engine has the only request."""
    return any(each.record.entered_at for each in client.server.active.values())


def process(llm: AsyncLLM) -> Any:
    """Return the current engine process."""
    client: Any = llm._client
    return client.engines[0].supervisor.run.process.popen


@pytest.mark.slow
def test_a_stream_outlives_its_engine(tmp_path: Path) -> None:
    """The client sees a pause when the engine is killed, and then the same text."""
    options: Any = {"block_size": 4, "num_gpu_blocks_override": 200}
    llm = AsyncLLM(str(make_model(tmp_path)), engine="process", timing=clients.patient(), **options)

    async def main() -> None:
        llm.attach()
        assert llm.is_well()
        async with Client(Server(llm, patient())) as client:
            fields = {"max_tokens": 100, "temperature": 0, "ignore_eos": True}
            whole = await client.complete(**fields)
            body = {"prompt": "The quick", "stream": True, **fields}
            (engine,) = llm.engines
            while not engine.vitals.num_deaths:  # once more if the stream ended before the kill
                asked = asyncio.ensure_future(client.post("/v1/completions", json=body))
                while not (asked.done() or has_begun(client)):
                    await asyncio.sleep(0.002)
                if not asked.done():
                    process(llm).kill()
                    await until(lambda: bool(engine.vitals.num_deaths))
                response = await asked
                text = "".join(c["text"] for e in events(response.text) for c in e["choices"])
                assert text == whole["choices"][0]["text"]
                await until(llm.is_well)  # the kill may have come behind the last token
            ready = await client.get("/health/ready")
            assert ready.status_code == 200
            assert (await client.get("/metrics")).status_code == 200
            await client.server.prompt_pool.close()

    try:
        asyncio.run(main())
    finally:
        llm.close()
