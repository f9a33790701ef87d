"""A spare engine with ranks of its own: it takes over when a rank of the serving one is killed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.engine.ranks.group import PROGRAM
from tests.client.clients import patient
from tests.ranks.followers import followers_of, runs, wait_until
from tests.ranks.small import TIGHT, write

pytestmark = pytest.mark.slow

STREAMS = [[3 + (7 * i + j) % 90 for j in range(3 + i % 7)] for i in range(50)]
SAMPLING = SamplingParams(max_tokens=24, seed=5, temperature=1.0, ignore_eos=True)


@pytest.mark.parametrize(
    ("kind", "more"),
    [("LlamaForCausalLM", {}), ("Qwen2MoeForCausalLM", {"enable_expert_parallel": True})],
)
def test_a_spare_engine_continues_when_a_rank_is_killed(
    tmp_path: Path, kind: str, more: dict[str, Any]
) -> None:
    model = str(write(tmp_path, kind))
    with LLM(model, **TIGHT) as alone:
        outputs = alone.generate(STREAMS, SAMPLING, use_tqdm=False)
        expected = [list(each.outputs[0].token_ids) for each in outputs]
    timing = patient(spare_delay_seconds=0.0)
    options: dict[str, Any] = {**TIGHT, "tensor_parallel_size": 2, "spare_engine": True, **more}
    llm = AsyncLLM(model, engine="process", timing=timing, **options)
    client: Any = llm._client
    supervisor = client.engines[0].supervisor

    begun = asyncio.Event()

    async def one(prompt: list[int]) -> list[int]:
        async for output in llm.generate(prompt, SAMPLING):
            last = output
            begun.set()
        return list(last.outputs[0].token_ids)

    async def world() -> list[int]:
        while supervisor.spare.facts is None:
            await one(STREAMS[0])
        serving, spare = (run.process.popen.pid for run in (supervisor.run, supervisor.spare.run))
        ours, others = followers_of(serving, PROGRAM), followers_of(spare, PROGRAM)
        assert len(ours) == len(others) == 1
        begun.clear()
        asked = [asyncio.ensure_future(one(prompt)) for prompt in STREAMS]
        await begun.wait()
        os.kill(ours[0], signal.SIGKILL)
        assert await asyncio.gather(*asked) == expected
        assert supervisor.run.process.popen.pid == spare
        return [serving, *ours, *others]

    try:
        serving, ours, others = asyncio.run(world())
        wait_until(lambda: not any(runs(each, PROGRAM) for each in (serving, ours)))
        assert runs(others, PROGRAM)
    finally:
        llm.close()
    wait_until(lambda: not runs(others, PROGRAM))
