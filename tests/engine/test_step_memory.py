"""A step for which there is no memory: which requests fail, and with which error.

An inline engine is broken, and every caller gets the error. An engine in its own process is
replaced, and only the request that needs too much memory fails.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("octavo.backends.native._native")

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.api.outputs import EngineDeadError
from octavo.api.requests import FailedRequestError
from octavo.backends.native.backend import NativeBackend
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import make_client
from octavo.options.engine import EngineArguments
from tests.api.tiny import make_model
from tests.client.clients import LIMIT, patient
from tests.engine import short_memory as short

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SHORT = [[5, 6, 7], [8, 9], [10]]
LONG = [11] * (short.MOST_ROWS + 1)
OPTIONS: dict[str, Any] = {
    "backend": "native",
    "num_threads": 1,
    "num_gpu_blocks_override": 60,
    "enable_prefix_caching": False,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeBackend, "step", short.step)


async def tokens_of(engine: AsyncLLM, prompt: list[int]) -> list[int]:
    outputs = [output async for output in engine.generate(prompt, GREEDY)]
    return list(outputs[-1].outputs[0].token_ids)


@pytest.mark.usefixtures("is_short")
def test_a_call_raises_it_and_later_calls_say_that_the_llm_is_broken(directory: Path) -> None:
    with LLM(directory, **OPTIONS) as llm:
        assert len(llm.generate(SHORT, GREEDY)) == 3
        with pytest.raises(MemoryError, match=short.MESSAGE):
            llm.generate([*SHORT, LONG], GREEDY)
        with pytest.raises(EngineDeadError, match="make a new LLM") as raised:
            llm.generate(SHORT, GREEDY)
        assert isinstance(raised.value.__cause__, MemoryError)


@pytest.mark.usefixtures("is_short")
def test_every_inline_caller_gets_the_reason(directory: Path) -> None:
    engine = AsyncLLM(directory, **OPTIONS)

    async def world() -> None:
        asked = [tokens_of(engine, prompt) for prompt in (LONG, *SHORT)]
        for error in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(error, EngineDeadError)
            assert f"MemoryError: {short.MESSAGE}" in str(error)
        assert not engine.is_well()
        with pytest.raises(EngineDeadError, match=short.MESSAGE):
            await tokens_of(engine, SHORT[0])

    try:
        asyncio.run(asyncio.wait_for(world(), LIMIT))
    finally:
        engine.close()


@pytest.mark.slow
def test_in_its_own_process_only_the_request_that_needs_too_much_fails(directory: Path) -> None:
    with LLM(directory, **OPTIONS) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(SHORT, GREEDY)]
    arguments = EngineArguments(str(directory), **OPTIONS)
    client = make_client(arguments, [ProcessLauncher("tests.engine.short_memory:make")], patient())
    client.start()
    engine = AsyncLLM.over(client, arguments)

    async def world() -> None:
        asked = [tokens_of(engine, prompt) for prompt in (*SHORT, LONG)]
        *outputs, failed = await asyncio.gather(*asked, return_exceptions=True)
        assert outputs == expected
        assert isinstance(failed, FailedRequestError)
        assert failed.reason == "error"
        assert f"MemoryError: {short.MESSAGE}" in str(failed)
        assert await tokens_of(engine, SHORT[0]) == expected[0]

    try:
        asyncio.run(asyncio.wait_for(world(), LIMIT))
    finally:
        engine.close()
