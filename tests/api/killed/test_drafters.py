"""Requests whose drafts a second model makes go on in a new engine, with the same texts."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncLLM, SamplingParams
from octavo.api.outputs import RequestOutput
from tests.api.tiny import make_model
from tests.client.clients import patient, process_of
from tests.runner.speculate.fitted_heads import (
    fit_dflash,
    fit_eagle3,
    fit_medusa,
)

pytestmark = pytest.mark.slow

NUM_STREAMS = 3
DRAFTERS: dict[str, Callable[[Path, Path], Path]] = {
    "dflash": fit_dflash,
    "eagle3": fit_eagle3,
    "medusa": fit_medusa,
    "draft_model": lambda model, _: model,
}


@pytest.mark.parametrize("method", DRAFTERS)
def test_a_drafted_text_survives_kill_9(tmp_path: Path, method: str) -> None:
    model = make_model(tmp_path)
    drafter = DRAFTERS[method](model, tmp_path / "drafter")
    llm = AsyncLLM(
        str(model),
        engine="process",
        timing=patient(),
        backend="native",
        num_threads=1,
        speculative_config={"method": method, "model": str(drafter), "num_speculative_tokens": 2},
    )
    client: Any = llm._client

    async def answers(sampling: SamplingParams, *, kill_at: int = 0) -> list[RequestOutput]:
        """Answer all streams; kill the engine once the first has so many tokens."""
        is_killed = kill_at == 0

        async def answer(number: int) -> RequestOutput:
            nonlocal is_killed
            prompt = {"prompt_token_ids": [5 + number, 6, 7]}
            own = replace(sampling, seed=number)
            async for output in llm.generate(prompt, own):
                last = output
                if not is_killed and len(output.outputs[0].token_ids) >= kill_at:
                    is_killed = True
                    process_of(client).send_signal(signal.SIGKILL)
            return last

        return await asyncio.gather(*map(answer, range(NUM_STREAMS)))

    async def main() -> None:
        params = SamplingParams(max_tokens=100, temperature=0.8, ignore_eos=True)
        plain = await answers(replace(params, speculation=False))
        texts = [output.outputs[0].token_ids for output in plain]
        # An engine may have generated everything before the first outputs are read: try again.
        num_restarts = num_drafts = 0
        while not num_restarts:
            found = await answers(params, kill_at=20)
            assert [output.outputs[0].token_ids for output in found] == texts
            for output in found:
                assert output.metrics is not None
                num_restarts += len(output.metrics.restarts)
                num_drafts += output.metrics.num_drafts
        assert num_drafts > 0

    try:
        asyncio.run(main())
    finally:
        llm.close()
