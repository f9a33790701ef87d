"""A text with a shape or a budget goes on in a new engine as if none had been killed."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from octavo import AsyncLLM, SamplingParams, StructuredOutputsParams
from tests.api.tiny import TEMPLATE, make_model
from tests.client.clients import patient, process_of

pytestmark = pytest.mark.slow
CLOSE, BUDGET = 3, 40
SPECIAL = ("<s>", "</s>", "<think>", "</think>")
PROMPTS = ["The quick brown fox", "A day in", "Ein Tag wie", "The lazy dog<think>"]
SHAPE = StructuredOutputsParams(regex="([a-z]{3}[0-9]{2}, the end of it; ){4}!")


@pytest.mark.parametrize("forcing", ["canonical", "off"])
def test_shaped_texts_survive_kill_9(tmp_path: Path, forcing: str) -> None:
    """Each engine is killed after a few outputs, so that grammars are rebuilt."""
    pytest.importorskip("octavo.backends.native._native")
    llm = AsyncLLM(
        str(make_model(tmp_path, f"{TEMPLATE}{{# <think> #}}", SPECIAL)),
        engine="process",
        timing=patient(),
        backend="native",
        num_threads=1,
        forced_tokens=forcing,
    )
    client: Any = llm._client
    seen = 0

    async def one(number: int, is_killing: bool) -> tuple[str, list[int]]:
        nonlocal seen
        params = SamplingParams(max_tokens=110, seed=number, structured_outputs=SHAPE)
        if "<think>" in PROMPTS[number]:
            params = SamplingParams(
                max_tokens=110,
                seed=number,
                thinking_token_budget=BUDGET,
                ignore_eos=True,
                logit_bias=((CLOSE, -100.0),),  # so that only the budget ends it
            )
        last = None
        async for output in llm.generate(PROMPTS[number], params):
            last = output.outputs[0]
            seen += 1
            if is_killing and seen % 25 == 0:
                process_of(client).send_signal(signal.SIGKILL)
        assert last is not None
        if params.thinking_token_budget is None:
            assert last.finish_reason == "stop"
        else:
            assert list(last.token_ids).index(CLOSE) == BUDGET
        return last.text, list(last.token_ids)

    async def world() -> None:
        calm = await asyncio.gather(*(one(number, False) for number in range(len(PROMPTS))))
        # An engine may have generated everything before the first outputs are read: try again.
        while not client.engines[0].supervisor.restarts.num_restarts:
            killed = await asyncio.gather(*(one(number, True) for number in range(len(PROMPTS))))
            assert killed == calm

    try:
        asyncio.run(world())
    finally:
        llm.close()
