"""A real engine needs no file, and no module, that it has not opened before it was confined."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncLLM, SamplingParams, StructuredOutputsParams
from octavo.api.outputs import RequestOutput
from tests.api.tiny import make_model
from tests.client.clients import patient

pytestmark = pytest.mark.slow

PROMPT = [3, 4, 5, 6] * 8
EVERYTHING: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.0, "logprobs": 3, "prompt_logprobs": 2},
    {"n": 3, "seed": 1, "top_k": 5, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    {"logit_bias": {5: 3.0}, "bad_words": ["a"], "min_tokens": 2, "stop": ["zz"]},
    {"allowed_token_ids": [5, 6, 7], "stop_token_ids": [7]},
    {"structured_outputs": StructuredOutputsParams(regex="(ab|cd)+")},
)


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("depth", [False, True])
def test_a_confined_engine_serves_every_kind_of_request(
    tmp_path: Path, backend: str, depth: bool
) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    speculation = None if depth else {"method": "ngram", "num_speculative_tokens": 2}
    llm = AsyncLLM(
        str(make_model(tmp_path)),
        engine="process",
        timing=patient(),
        backend=backend,
        max_model_len=128,
        max_num_batched_tokens=16,
        num_gpu_blocks_override=40,  # so few that sequences are preempted
        async_scheduling=depth,
        speculative_config=speculation,
        num_threads=2 if backend == "native" else 0,
    )

    async def one(values: dict[str, Any]) -> RequestOutput:
        sampling = SamplingParams(max_tokens=40, **values)
        return [output async for output in llm.generate(PROMPT, sampling)][-1]

    async def world() -> None:
        outputs = await asyncio.gather(*(one(values) for values in EVERYTHING * 4))
        assert all(output.finished for output in outputs)
        assert len((await llm.embed(PROMPT)).outputs.embedding) > 0
        await llm.pause()
        await llm.resume()
        await llm.reset_prefix_cache()
        assert (await one({})).finished
        client: Any = llm._client
        assert client.engines[0].supervisor.restarts.num_restarts == 0

    try:
        asyncio.run(world())
    finally:
        llm.close()
