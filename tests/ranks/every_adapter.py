"""Adapters of ranks, for more kinds of models and more adapters: `make test-ranks`."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, LoRARequest, SamplingParams
from tests.client.clients import patient
from tests.ranks.adapters import SETTINGS, answers, requests_of, write_all, write_many
from tests.ranks.small import FORMATS, KINDS, PROMPTS, TIGHT, sampling, write
from tests.ranks.test_deaths import ranks_of

RANKS = (2, 3, 4)
_GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@cache
def alone(directory: Path, kind: str, format_: str) -> list[Any]:
    """Return the answers of one process with one thread."""
    return found(directory, kind, **FORMATS[format_])


def found(directory: Path, kind: str, **options: Any) -> list[Any]:
    model, adapters = write(directory, kind), directory / f"{kind} adapters"
    paths = sorted(adapters.iterdir()) if adapters.exists() else write_all(model, adapters)
    return answers(model, paths, **options)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("format_", FORMATS)
def test_each_kind_of_adapter_in_each_format(directory: Path, format_: str, ranks: int) -> None:
    options = {**FORMATS[format_], "tensor_parallel_size": ranks}
    expected = alone(directory, "LlamaForCausalLM", format_)
    assert found(directory, "LlamaForCausalLM", **options) == expected


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_answer_with_adapters_as_one_process(directory: Path, kind: str, ranks: int) -> None:
    options = {"tensor_parallel_size": ranks}
    assert found(directory, kind, **options) == alone(directory, kind, "bf16")


@pytest.mark.parametrize("threads", [2, 3])
def test_threads_of_ranks_divide_what_adapters_add(directory: Path, threads: int) -> None:
    options = {"tensor_parallel_size": 2, "num_threads": threads}
    expected = alone(directory, "LlamaForCausalLM", "bf16")
    assert found(directory, "LlamaForCausalLM", **options) == expected


def test_hundreds_of_adapters_come_and_go(directory: Path) -> None:
    """Three of them are in memory at once, two of these in a step."""
    model = write(directory, "LlamaForCausalLM")
    asked = requests_of(write_many(model, directory / "many", 200))
    settings = [sampling(at) for at in range(len(asked))]
    texts: list[Any] = []
    for ranks in (1, 2):
        options = {**TIGHT, **SETTINGS, "tensor_parallel_size": ranks}
        with LLM(str(model), **options) as llm:
            outputs = llm.generate(
                [PROMPTS[0]] * len(asked), settings, use_tqdm=False, lora_request=asked
            )
            texts.append([each.outputs[0].logprobs for each in outputs])
    assert texts[0] == texts[1]


def test_streams_with_adapters_continue_when_a_rank_is_killed(tmp_path: Path) -> None:
    """Some of the adapters are loaded at that time, and others are still to come."""
    model = write(tmp_path, "LlamaForCausalLM")
    asked = requests_of(write_all(model, tmp_path / "adapters"))
    prompts = [PROMPTS[1]] * len(asked)
    with LLM(str(model), **{**TIGHT, **SETTINGS}) as alone:
        outputs = alone.generate(prompts, _GREEDY, use_tqdm=False, lora_request=asked)
        expected = [list(each.outputs[0].token_ids) for each in outputs]
    options = {**TIGHT, **SETTINGS, "tensor_parallel_size": 2, "timing": patient()}
    llm = AsyncLLM(str(model), engine="process", **options)
    client: Any = llm._client

    async def world() -> None:
        seen = asyncio.Event()

        async def one(adapter: LoRARequest | None) -> list[int]:
            async for output in llm.generate(PROMPTS[1], _GREEDY, lora_request=adapter):
                seen.set()
                last = output
            return list(last.outputs[0].token_ids)

        streams = [asyncio.ensure_future(one(adapter)) for adapter in asked]
        await seen.wait()
        (rank,) = ranks_of(int(client.engines[0].supervisor.run.process.popen.pid))
        os.kill(rank, signal.SIGKILL)
        assert await asyncio.gather(*streams) == expected

    try:
        asyncio.run(world())
    finally:
        llm.close()
