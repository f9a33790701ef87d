"""Steps that are in several stages at once: what requests return is that of one process."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.core.structured_outputs import StructuredOutputsParams
from tests.api.test_overlap import ODD_PARAMS, ODD_PROMPTS, OPTIONS, PARAMS, PROMPTS, said
from tests.api.tiny import make_model
from tests.stages.small_steps import small_steps

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
}
SHAPED = [
    SamplingParams(max_tokens=40, seed=1, structured_outputs=StructuredOutputsParams(json=SCHEMA)),
    SamplingParams(max_tokens=9, temperature=0.0),
    SamplingParams(
        max_tokens=20, structured_outputs=StructuredOutputsParams(choice=("one", "two"))
    ),
    SamplingParams(max_tokens=30, seed=3, n=2),
    SamplingParams(max_tokens=40, seed=4, structured_outputs=StructuredOutputsParams(json=SCHEMA)),
]
CASES = {
    "sampled": (PROMPTS, PARAMS),
    "processors, vectors and failures": (ODD_PROMPTS, ODD_PARAMS),
    "shapes": (PROMPTS, SHAPED),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.mark.parametrize("case", CASES)
def test_requests_are_answered_as_by_one_process(case: str, directory: Path) -> None:
    prompts, parameters = CASES[case]
    options: dict[str, Any] = {**OPTIONS, "num_gpu_blocks_override": 30, "num_threads": 1}
    with LLM(str(directory), backend="native", **options) as llm:
        expected = said(llm.generate(prompts, parameters, use_tqdm=False))
    with small_steps(), LLM(str(directory), pipeline_parallel_size=2, **options) as llm:
        scheduler, together = llm._model.core.scheduler, []
        submit = llm._model.core._executor.submit

        def noted(plan: Any) -> None:
            together.append(len(scheduler.in_flight))
            submit(plan)

        llm._model.core._executor.submit = noted
        assert said(llm.generate(prompts, parameters, use_tqdm=False)) == expected
        assert not llm._model.core.has_work
    assert max(together) == 2
    assert together.count(2) > len(together) // 3
    if case == "shapes":
        assert set(json.loads(expected[0][3][0][1])) == {"a", "b"}


def test_streams_that_are_left_change_no_others(directory: Path) -> None:
    async def stream(engine: AsyncLLM, number: int) -> Any:
        outputs = []
        async for output in engine.generate(PROMPTS[number], PARAMS[number]):
            outputs.append(output)
            if number == 1:
                return None
        return said(outputs[-1:])

    async def streams(engine: AsyncLLM) -> list[Any]:
        try:
            return list(await asyncio.gather(*[stream(engine, n) for n in range(len(PROMPTS))]))
        finally:
            engine.close()

    options: dict[str, Any] = {**OPTIONS, "num_threads": 1}
    expected = asyncio.run(streams(AsyncLLM(str(directory), backend="native", **options)))
    with small_steps():
        engine = AsyncLLM(str(directory), pipeline_parallel_size=2, **options)
    assert asyncio.run(streams(engine)) == expected
