"""`LLM` and `AsyncLLM` with two engines of a small real model: the texts are those of one."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from dataclasses import replace
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, RequestOutputKind, SamplingParams
from octavo.api.outputs import EngineDeadError
from tests.api.tiny import make_model
from tests.client.clients import patient

pytestmark = pytest.mark.slow
OPTIONS: dict[str, Any] = {"backend": "native", "num_gpu_blocks_override": 60}
PROMPTS = [[3 + (7 * i + j) % 40 for j in range(4 + i)] for i in range(10)]
SAMPLING = SamplingParams(max_tokens=24, seed=5, temperature=1.0, ignore_eos=True, n=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def expected(model: str) -> list[Any]:
    with LLM(model, **OPTIONS) as llm:
        return texts(llm.generate(PROMPTS, SAMPLING, use_tqdm=False))


def texts(outputs: list[Any]) -> list[Any]:
    return [[part.token_ids for part in output.outputs] for output in outputs]


def test_an_llm_of_two_engines_gives_the_texts_of_one(model: str, expected: list[Any]) -> None:
    with LLM(model, data_parallel_size=2, **OPTIONS) as llm:
        assert texts(llm.generate(PROMPTS, SAMPLING, use_tqdm=False)) == expected
        assert llm.reset_prefix_cache()
        outputs = llm.generate(PROMPTS, SAMPLING, use_tqdm=False)
        assert texts(outputs) == expected
        engines = {engine for each in outputs if each.metrics for engine in each.metrics.engines}
        assert engines == {0, 1}

        parts: list[int] = []
        delta = replace(SAMPLING, n=1, temperature=0.0, output_kind=RequestOutputKind.DELTA)
        llm.stream(PROMPTS[0], lambda output: parts.extend(output.outputs[0].token_ids), delta)
        (whole,) = llm.generate(PROMPTS[0], replace(SAMPLING, n=1, temperature=0.0), use_tqdm=False)
        assert parts == whole.outputs[0].token_ids

        async def inside() -> Any:  # a caller that has a loop, as notebooks do
            return llm.generate(PROMPTS[:2], SAMPLING, use_tqdm=False)

        assert texts(asyncio.run(inside())) == expected[:2]
    with pytest.raises(EngineDeadError):
        llm.generate(PROMPTS[0], SAMPLING)


def test_an_llm_that_is_dropped_ends_its_engines(model: str) -> None:
    llm = LLM(model, data_parallel_size=2, **OPTIONS)
    client = llm._runner._client
    del llm
    gc.collect()
    deadline = time.monotonic() + 300
    while not all(member.engine.is_closed for member in client.members):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_prompt_is_lost_where_few_may_wait(model: str) -> None:
    prompts = [[3 + i % 40, 5, 7 + i // 40] for i in range(60)]
    sampling = SamplingParams(max_tokens=2, temperature=0.0, ignore_eos=True)
    with LLM(model, data_parallel_size=2, max_num_queued_reqs=2, **OPTIONS) as llm:
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
    assert [part.finish_reason for each in outputs for part in each.outputs] == ["length"] * 60


def test_streams_go_on_in_the_other_engine_with_equal_tokens(
    model: str, expected: list[Any]
) -> None:
    llm = AsyncLLM(model, engine="process", timing=patient(), data_parallel_size=2, **OPTIONS)
    client: Any = llm._client

    async def main() -> None:
        seen = asyncio.Event()

        async def one(prompt: list[int]) -> Any:
            async for output in llm.generate(prompt, SAMPLING):
                seen.set()
                last = output
            return last

        asked = [asyncio.ensure_future(one(prompt)) for prompt in PROMPTS]
        await seen.wait()
        os.kill(client.engines[1].supervisor.run.process.popen.pid, signal.SIGKILL)
        assert texts(list(await asyncio.gather(*asked))) == expected
        while not client.members[1].vitals.num_restarts:
            await asyncio.sleep(0.01)
        facts = [engine.supervisor._newest_facts for engine in client.engines]
        assert facts[0].num_blocks == facts[1].num_blocks
        assert facts[0].accumulation_order == facts[1].accumulation_order

    try:
        asyncio.run(main())
    finally:
        llm.close()
