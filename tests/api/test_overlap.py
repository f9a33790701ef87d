"""Outputs are the same however many steps are in flight at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.api.outputs import EngineDeadError, RequestOutput
from octavo.core.pooling import Pooling
from octavo.resolve import resolve
from tests.api.tiny import make_model
from tests.runner.speculate.mixed_requests import even_only, forbid_later, raise_later

PROMPTS = ["The quick brown fox", "A day in", "Ein Tag wie", "x", "the dog does not mind"]
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"seed": 1, "top_p": 0.9},
    {"seed": 2, "repetition_penalty": 1.3, "presence_penalty": 0.5, "logprobs": 2},
    {"temperature": 0.0, "bad_words": ["e"], "min_tokens": 4},
    {"seed": 3, "prompt_logprobs": 1, "stop": ["a"]},
]
PARAMS = [SamplingParams(max_tokens=5 + 4 * number, **way) for number, way in enumerate(WAYS)]
# Those that need Python between forward pass and draw, fail, or ask for a vector.
ODD_PROMPTS = [*PROMPTS, "the dog", "A day in", "Ein"]
ODD_PARAMS = [
    SamplingParams(temperature=0.0, max_tokens=9, logits_processors=(even_only,)),
    SamplingParams(seed=5, max_tokens=9, logits_processors=(raise_later,), logprobs=1),
    SamplingParams(seed=6, max_tokens=12, logits_processors=(forbid_later,)),
    SamplingParams(seed=7, max_tokens=14, logprobs=0),
    SamplingParams(max_tokens=1, pooling=Pooling("mean")),
    SamplingParams(temperature=0.0, max_tokens=3, prompt_logprobs=0),
    SamplingParams(seed=8, max_tokens=5, logits_processors=(even_only, raise_later)),
    SamplingParams(max_tokens=1, pooling=Pooling("last")),
]
OPTIONS: dict[str, Any] = {"max_num_seqs": 4, "max_num_batched_tokens": 16}
DEPTHS = (1, 2, 3)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


def set_depth(patch: pytest.MonkeyPatch, depth: int) -> None:
    """Let engines that are built from now on have so many steps in flight."""

    def resolved(*arguments: Any, **named: Any) -> Any:
        config = resolve(*arguments, **named)
        return structs.replace(config, core=replace(config.core, pipeline_depth=depth))

    patch.setattr("octavo.engine.build.resolve", resolved)


def said(outputs: list[RequestOutput]) -> list[Any]:
    """Return everything about some outputs but their ids and times."""
    return [
        (
            output.prompt_token_ids,
            output.prompt_logprobs,
            output.hidden_state,
            [
                (o.error, o.text, list(o.token_ids), o.finish_reason, o.logprobs)
                for o in output.outputs
            ],
        )
        for output in outputs
    ]


def same_at_every_depth(directory: Path, backend: Any, prompts: Any, parameters: Any) -> list[Any]:
    """Generate at every depth, require that all outputs are the same, and return the last ones."""
    if backend == "native":
        pytest.importorskip("octavo.backends.native._native")
    found, outputs = [], []
    for depth in DEPTHS:
        with pytest.MonkeyPatch.context() as patch:
            set_depth(patch, depth)
            with LLM(str(directory), backend=backend, num_gpu_blocks_override=30, **OPTIONS) as llm:
                assert llm._model.core.scheduler.config.pipeline_depth == depth
                outputs = llm.generate(prompts, parameters, use_tqdm=False)
                found.append(said(outputs))
                assert not llm._model.core.has_work
    assert found[0] == found[1] == found[2]
    return outputs


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_batch_is_the_same_at_every_depth(directory: Path, backend: Any) -> None:
    same_at_every_depth(directory, backend, PROMPTS, PARAMS)


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_processors_vectors_and_failures_are_the_same_at_every_depth(
    directory: Path, backend: Any
) -> None:
    outputs = same_at_every_depth(directory, backend, ODD_PROMPTS, ODD_PARAMS)
    (failed,), (starved,) = outputs[1].outputs, outputs[2].outputs
    assert (len(failed.token_ids), failed.finish_reason) == (6, "error")
    assert (len(starved.token_ids), starved.finish_reason) == (4, "error")
    assert [output.hidden_state is not None for output in outputs].count(True) == 2


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_streams_are_the_same_at_every_depth(directory: Path, backend: Any) -> None:
    """Requests that come, end and are aborted while others run."""
    if backend == "native":
        pytest.importorskip("octavo.backends.native._native")

    async def stream(engine: AsyncLLM, number: int) -> Any:
        outputs = []
        async for output in engine.generate(PROMPTS[number], PARAMS[number]):
            outputs.append(output)
            if number == 1:  # its consumer leaves, which aborts it
                return None
        return said(outputs[-1:])

    async def world(engine: AsyncLLM) -> list[Any]:
        try:
            return list(await asyncio.gather(*[stream(engine, n) for n in range(len(PROMPTS))]))
        finally:
            engine.close()

    found = []
    for depth in DEPTHS:
        with pytest.MonkeyPatch.context() as patch:
            set_depth(patch, depth)
            engine = AsyncLLM(str(directory), backend=backend, **OPTIONS)
            found.append(asyncio.run(world(engine)))
    assert found[0] == found[1] == found[2]
    assert found[0][1] is None


@pytest.mark.parametrize("depth", DEPTHS)
def test_an_error_of_a_step_reaches_the_caller_at_every_depth(
    directory: Path, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_depth(monkeypatch, depth)
    with LLM(str(directory), backend="torch", **OPTIONS) as llm:
        executor: Any = llm._model.core._executor
        backend = executor.runner._backend
        forward, passes = backend.forward, iter(range(100))

        def failing(batch: Any) -> Any:
            if next(passes) == 4:
                raise MemoryError("no more")
            return forward(batch)

        backend.forward = failing
        with pytest.raises(MemoryError, match="no more"):
            llm.generate(PROMPTS, PARAMS[0])
        with pytest.raises(EngineDeadError):
            llm.generate(PROMPTS, PARAMS[0])


def test_the_argument_turns_it_on(directory: Path) -> None:
    with LLM(str(directory), async_scheduling=True, **OPTIONS) as llm:
        assert llm._model.core.scheduler.config.pipeline_depth == 2
        assert len(llm.generate(PROMPTS, PARAMS)) == len(PROMPTS)
