"""A request with a prediction goes on in a new engine, and follows its prediction there."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncLLM, SamplingParams
from octavo.api.outputs import RequestOutput
from tests.api.tiny import make_model
from tests.client.clients import patient, process_of

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", [None, "suffix"])
def test_a_prediction_survives_kill_9(tmp_path: Path, method: str | None) -> None:
    config = None if method is None else {"method": method}
    llm = AsyncLLM(
        str(make_model(tmp_path)),
        engine="process",
        timing=patient(),
        backend="native",
        num_threads=1,
        speculative_config=config,
    )
    client: Any = llm._client
    params = SamplingParams(max_tokens=100, temperature=1.0, seed=2, ignore_eos=True)

    async def answer(sampling: SamplingParams, *, kill_at: int) -> RequestOutput:
        last: RequestOutput | None = None
        is_killed = kill_at == 0
        async for output in llm.generate({"prompt_token_ids": [5, 6, 7]}, sampling):
            last = output
            if not is_killed and len(output.outputs[0].token_ids) >= kill_at:
                is_killed = True
                process_of(client).send_signal(signal.SIGKILL)
        assert last is not None
        return last

    async def main() -> None:
        plain = await answer(replace(params, speculation=False), kill_at=0)
        ids = plain.outputs[0].token_ids
        assert plain.metrics is not None
        assert plain.metrics.num_drafts == 0
        edited = (*ids[:30], 9, *ids[31:])
        # An engine may have generated everything before the first outputs are read: try again.
        num_restarts = 0
        while not num_restarts:
            found = await answer(replace(params, prediction=edited), kill_at=20)
            assert found.outputs[0].token_ids == ids
            assert found.outputs[0].num_accepted_prediction_tokens > 20
            assert found.metrics is not None
            num_restarts = len(found.metrics.restarts)

    try:
        asyncio.run(main())
    finally:
        llm.close()
