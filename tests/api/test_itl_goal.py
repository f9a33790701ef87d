"""Steps are bounded in time where outputs are streamed, and tokens do not depend on it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.core.config import CoreConfig
from octavo.core.structured_outputs import StructuredOutputsParams
from tests.api.tiny import core_of, make_model

LONG = "A day in which the quick brown fox minds the dog is a day wie ein Tag und noch ein Tag"
PROMPTS = ["x", "The quick brown fox", "Ein Tag wie ein Tag", LONG, f"{LONG[::-1]} x", LONG[9:]]
PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True),
    SamplingParams(seed=1, max_tokens=6, prompt_logprobs=1),
    SamplingParams(seed=2, max_tokens=9, logprobs=2),
    SamplingParams(seed=4, max_tokens=8),
    SamplingParams(seed=5, max_tokens=8, prompt_logprobs=0),
    SamplingParams(
        seed=3, max_tokens=12, structured_outputs=StructuredOutputsParams(choice=("fox", "dog"))
    ),
]
SMALL: dict[str, Any] = {"max_num_seqs": 3, "max_num_batched_tokens": 64}
SPECULATION = {"method": "ngram", "num_speculative_tokens": 3}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"async_scheduling": True},
        {"enable_chunked_prefill": False},
        {"speculative_config": SPECULATION},
    ],
    ids=lambda options: next(iter(options), "plain"),
)
def test_tokens_do_not_depend_on_the_goal(directory: Path, options: dict[str, Any]) -> None:
    """No step is within a goal of a nanosecond, so each has a block of a prompt."""
    outputs, deferred = [], []
    asked: list[dict[str, Any]] = [{}, {"itl_goal": 1e-9}, {"itl_goal": 1e-9, "ttft_goal": 60.0}]
    for goals in asked:
        with LLM(directory, **SMALL, **options, **goals) as llm:
            done = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
            outputs.append([each.outputs[0].token_ids for each in done])
            deferred.append(llm._model.core.scheduler.stats.num_deferred_tokens)
    assert outputs[0] == outputs[1] == outputs[2]
    assert deferred[0] == 0
    assert deferred[1] > 0 or "enable_chunked_prefill" in options


def test_steps_are_bounded_by_default_where_outputs_are_streamed(directory: Path) -> None:
    """Callers of `LLM` wait for whole outputs: longer steps cost them nothing."""

    def goals(config: CoreConfig) -> tuple[float, float, float]:
        return config.itl_goal, config.itl_ratio, config.ttft_goal

    async def streamed(**options: Any) -> tuple[float, float, float]:
        engine = AsyncLLM(directory, **SMALL, **options)
        try:
            return goals(core_of(engine).scheduler.config)
        finally:
            engine.shutdown()

    goal, ratio, first = asyncio.run(streamed())
    assert (goal, first) == (0.0, 0.0)
    assert 2.0 <= ratio <= 3.0
    assert asyncio.run(streamed(itl_goal=0)) == (0.0, 0.0, 0.0)
    assert asyncio.run(streamed(itl_goal=0.05, ttft_goal=2.0)) == (0.05, 0.0, 2.0)
    with LLM(directory, **SMALL) as llm:
        assert goals(llm._model.core.scheduler.config) == (0.0, 0.0, 0.0)
