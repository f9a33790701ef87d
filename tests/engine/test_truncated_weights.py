"""A file of weights that becomes shorter while it is mapped costs a restart, and is named."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncLLM, SamplingParams
from octavo.client.errors import EngineStartError
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import make_client
from octavo.options.engine import EngineArguments
from tests.api.tiny import make_model
from tests.client.clients import eventually, patient

pytestmark = pytest.mark.slow

TIMING = patient(
    restart_delay_seconds=0.05, max_restart_delay_seconds=0.05, max_failed_engines=1000
)
SAMPLING = SamplingParams(temperature=0.0, max_tokens=90, ignore_eos=True)
PROMPT = [3, 4, 5, 6]


def test_a_file_that_becomes_shorter_while_it_is_loaded(tmp_path: Path) -> None:
    model = str(make_model(tmp_path))
    launcher = ProcessLauncher("tests.engine.truncated_load:make")
    client = make_client(EngineArguments(model, backend="native"), [launcher])
    with pytest.raises(EngineStartError, match="SIGBUS: a file that it had mapped, such as the"):
        client.start()


def test_streams_continue_when_the_file_is_whole_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine that has loaded its weights does not need the file; the next one does."""
    weights = make_model(tmp_path) / "model.safetensors"
    whole = weights.read_bytes()
    llm = AsyncLLM(str(tmp_path), engine="process", timing=TIMING, max_model_len=96)
    client: Any = llm._client

    async def tokens() -> list[int]:
        outputs = [output async for output in llm.generate(PROMPT, SAMPLING)]
        return list(outputs[-1].outputs[0].token_ids)

    async def world() -> None:
        undisturbed = await tokens()
        os.truncate(weights, 4096)
        assert await tokens() == undisturbed
        client.engines[0].supervisor.run.process.popen.kill()
        open_stream = asyncio.ensure_future(tokens())
        await eventually(lambda: client.engines[0].supervisor.restarts.num_restarts >= 3)
        assert not open_stream.done()
        weights.write_bytes(whole)
        assert await open_stream == undisturbed

    try:
        asyncio.run(world())
    finally:
        llm.close()
    assert "model.safetensors" in caplog.text
    assert "the file has 4,096" in caplog.text
