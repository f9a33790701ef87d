"""A step for which there is no memory: who is harmed, and what everybody is told.

Inline the engine is broken and says so to all; in a process of its own another takes its place,
and the request that asks for too much fails alone.
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
from octavo.client.process import ProcessClient
from octavo.engine_arguments import EngineArguments
from tests.api.tiny import make_model
from tests.client.make import LIMIT
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
    monkeypatch.setattr(NativeBackend, "forward", short.forward)


async def tokens_of(engine: AsyncLLM, prompt: list[int]) -> list[int]:
    outputs = [output async for output in engine.generate(prompt, GREEDY)]
    return list(outputs[-1].outputs[0].token_ids)


@pytest.mark.usefixtures("is_short")
def test_a_call_raises_it_and_the_llm_says_that_it_is_broken(directory: Path) -> None:
    with LLM(directory, **OPTIONS) as llm:
        assert len(llm.generate(SHORT, GREEDY)) == 3
        with pytest.raises(MemoryError, match=short.TOLD):
            llm.generate([*SHORT, LONG], GREEDY)
        with pytest.raises(EngineDeadError, match="make a new LLM") as raised:
            llm.generate(SHORT, GREEDY)
        assert isinstance(raised.value.__cause__, MemoryError)


@pytest.mark.usefixtures("is_short")
def test_everybody_who_waits_inline_is_told_why(directory: Path) -> None:
    engine = AsyncLLM(directory, **OPTIONS)

    async def world() -> None:
        asked = [tokens_of(engine, prompt) for prompt in (*SHORT, LONG)]
        for told in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(told, EngineDeadError)
            assert f"MemoryError: {short.TOLD}" in str(told)
        assert not engine.is_well()
        with pytest.raises(EngineDeadError, match=short.TOLD):
            await tokens_of(engine, SHORT[0])

    try:
        asyncio.run(asyncio.wait_for(world(), LIMIT))
    finally:
        engine.close()


@pytest.mark.slow
def test_in_a_process_of_its_own_only_what_asks_for_too_much_fails(directory: Path) -> None:
    with LLM(directory, **OPTIONS) as llm:
        expected = [output.outputs[0].token_ids for output in llm.generate(SHORT, GREEDY)]
    arguments = EngineArguments(str(directory), **OPTIONS)
    client = ProcessClient(arguments, ProcessLauncher("tests.engine.short_memory:make"))
    client.start()
    engine = AsyncLLM.over(client, arguments)

    async def world() -> None:
        asked = [tokens_of(engine, prompt) for prompt in (*SHORT, LONG)]
        *told, failed = await asyncio.gather(*asked, return_exceptions=True)
        assert told == expected
        assert isinstance(failed, FailedRequestError)
        assert failed.reason == "error"
        assert f"MemoryError: {short.TOLD}" in str(failed)
        assert await tokens_of(engine, SHORT[0]) == expected[0]

    try:
        asyncio.run(asyncio.wait_for(world(), LIMIT))
    finally:
        engine.close()
