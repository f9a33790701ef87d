"""`AsyncLLM` over an engine in its own process: the same streams, which survive its crashes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import load_file

from octavo import AsyncLLM, RequestError, RequestOutputKind, SamplingParams
from octavo.api.outputs import EngineDeadError, RequestOutput
from octavo.client.errors import EngineStartError
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import ProcessClient, make_client
from octavo.core.config import ConfigError
from octavo.options.engine import EngineArguments
from tests.api.tiny import make_model
from tests.client import clients
from tests.client.clients import FACTORY, LIMIT

LONG = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
ENDLESS = replace(LONG, max_tokens=4000)  # long enough to be ended by something else
SEEDED = SamplingParams(
    n=2, seed=3, max_tokens=40, ignore_eos=True, output_kind=RequestOutputKind.DELTA
)
PROMPTS = ["The quick brown fox", "A day in", "Ein Tag wie"]
SIZES: dict[str, Any] = {"block_size": 4, "num_gpu_blocks_override": 200}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """The gate of `fake`: while the file exists, each request gets two tokens."""
    return tmp_path / "gate"


@pytest.fixture
def fake(directory: Path, gate: Path) -> Iterator[AsyncLLM]:
    engine = over_fake(directory, f"step=0.002&gate={gate}")
    yield engine
    engine.close()


def over_fake(directory: Path, settings: str = "step=0.002", timing: Any = None) -> AsyncLLM:
    arguments = EngineArguments(model=f"fake?{settings}", tokenizer=str(directory))
    client = make_client(arguments, [ProcessLauncher(FACTORY)], timing or clients.patient())
    client.start()
    return AsyncLLM.over(client, arguments)


def process_of(engine: AsyncLLM) -> Any:
    client = engine._client
    assert isinstance(client, ProcessClient)
    return clients.process_of(client)


async def collect(engine: AsyncLLM, prompt: Any, sampling: SamplingParams) -> list[RequestOutput]:
    return [output async for output in engine.generate(prompt, sampling)]


def run(work: Any) -> Any:
    return asyncio.run(asyncio.wait_for(work, LIMIT))


@pytest.mark.slow
def test_a_real_model_gives_the_same_text_inline_and_in_a_killed_process(
    directory: Path,
) -> None:
    async def all_streams(engine: AsyncLLM, kills: bool) -> list[tuple[list[str], list[list[int]]]]:
        async def one(prompt: str, sampling: SamplingParams) -> tuple[list[str], list[list[int]]]:
            texts = [""] * sampling.n
            ids: list[list[int]] = [[] for _ in range(sampling.n)]
            async for output in engine.generate(prompt, sampling):
                for part in output.outputs:
                    if sampling.output_kind is RequestOutputKind.DELTA:
                        texts[part.index] += part.text
                        ids[part.index] += part.token_ids
                    else:
                        texts[part.index], ids[part.index] = part.text, part.token_ids
                if kills and len(ids[0]) > 5 and not killed:
                    killed.append(True)
                    process_of(engine).kill()
            return texts, ids

        killed: list[bool] = []
        work = [one(prompt, sampling) for prompt in PROMPTS for sampling in (LONG, SEEDED)]
        results = await asyncio.gather(*work)
        assert bool(killed) is kills
        return results

    inline = AsyncLLM(directory, **SIZES)
    expected = run(all_streams(inline, kills=False))
    assert "load the tokenizer" in dict(inline.facts.start_seconds)  # beside the weights
    inline.close()
    outside = AsyncLLM(directory, engine="process", timing=clients.patient(), **SIZES)
    try:
        assert run(all_streams(outside, kills=True)) == expected
        facts = outside.facts
        assert facts.architecture == "LlamaForCausalLM"
        sizes = [each.size for each in load_file(f"{directory}/model.safetensors").values()]
        assert (facts.num_parameters, facts.weight_type) == (sum(sizes), "F32")
        assert facts.vocabulary == 300
        assert facts.memory_bytes["KV cache"] > 0
        assert "load the weights to the end" in dict(facts.start_seconds)
    finally:
        outside.close()


def test_text_and_usage_are_complete_after_a_crash(fake: AsyncLLM, gate: Path) -> None:
    async def world() -> None:
        gate.touch()
        stream = fake.generate([1, 2, 3], LONG)
        await anext(stream)
        process_of(fake).kill()
        gate.unlink()
        outputs = [output async for output in stream]
        last = outputs[-1]
        assert len(last.outputs[0].token_ids) == 60
        assert last.outputs[0].text
        assert last.metrics is not None
        assert last.metrics.num_output_tokens == 60
        assert last.metrics.wait_seconds["restart"] > 0
        assert last.metrics.num_decode_steps == 58, "both engines made a first token"
        (restart,) = last.metrics.restarts
        first, again = last.metrics.chunks
        assert last.metrics.added_at < first.planned_at < restart.lost_at
        assert restart.lost_at < restart.resumed_at < again.planned_at
        assert last.metrics.finished_at is not None
        assert again.applied_at < last.metrics.finished_at
        assert (
            last.outputs[0].token_ids
            == (await collect(fake, [1, 2, 3], LONG))[-1].outputs[0].token_ids
        )

    run(world())


def test_leaving_aborting_pausing_and_resetting(fake: AsyncLLM, gate: Path) -> None:
    async def world() -> None:
        stream = fake.generate([1, 2], LONG, "left")
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        while not fake.snapshot().num_finished:  # its third token would wait at the gate
            await asyncio.sleep(0.01)
        gate.touch()
        stream = fake.generate([1, 2], LONG, "mine")
        await anext(stream)
        await fake.abort("mine")
        gate.unlink()
        last = [output async for output in stream][-1]
        assert last.outputs[0].finish_reason == "abort"
        await fake.pause()
        waiting = asyncio.create_task(collect(fake, [1] * 9, LONG))
        while not fake.snapshot().is_paused:
            await asyncio.sleep(0.01)
        assert not waiting.done()
        await fake.resume()
        await waiting
        assert await fake.reset_prefix_cache()
        cold = await collect(fake, [1] * 9, LONG)
        assert cold[-1].num_cached_tokens == 0
        assert fake.is_well()
        with pytest.raises(RequestError, match="leaves no room"):
            await collect(fake, [1] * 5000, LONG)

    run(world())
    assert not fake._sinks
    assert len(fake._table) == 0


def test_an_engine_outlives_an_event_loop(fake: AsyncLLM) -> None:
    first = run(collect(fake, [5], LONG))
    loop = asyncio.new_event_loop()
    loop.run_until_complete(anext(fake.generate([5], LONG)))
    loop.close()  # with an open stream that is never read
    process_of(fake).kill()
    assert run(collect(fake, [5], LONG))[-1].outputs == first[-1].outputs
    assert len(fake._table) == 0


def test_closing_wakes_the_callers_that_wait(directory: Path, gate: Path) -> None:
    gate.touch()  # no stream ends by itself
    engine = over_fake(directory, f"gate={gate}")
    process = process_of(engine)

    async def world() -> None:
        stream = engine.generate([1], ENDLESS)
        await anext(stream)
        engine.close()
        with pytest.raises(EngineDeadError, match="the engine is closed"):
            async for _ in stream:
                pass
        with pytest.raises(EngineDeadError, match="the engine is closed"):
            await collect(engine, [1], LONG)

    run(world())
    assert process.poll() is not None


def test_every_caller_gets_the_reason_when_no_engine_can_start(directory: Path) -> None:
    timing = clients.patient(max_failed_engines=2, restart_delay_seconds=0.01)
    engine = over_fake(directory, "step=0.05", timing)  # a stream takes minutes
    client: Any = engine._client

    async def world() -> None:
        streams = [engine.generate([index], ENDLESS) for index in range(3)]
        for stream in streams:
            await anext(stream)
        client.engines[0]._arguments = EngineArguments(model="fake?fail=the disk is gone")
        process_of(engine).kill()
        for stream in streams:
            with pytest.raises(EngineDeadError, match="the disk is gone"):
                async for _ in stream:
                    pass
        assert not engine.is_well()
        with pytest.raises(EngineDeadError, match="the disk is gone"):
            await collect(engine, [1], LONG)

    run(world())
    engine.close()


def test_options_that_an_engine_in_its_own_process_refuses(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="use engine='inline'"):
        AsyncLLM(tmp_path, engine="process", logits_processors={"mine": lambda p, o, x: x})
    with pytest.raises(ConfigError, match="must be 'inline' or 'process'"):
        AsyncLLM(tmp_path, engine="thread")
    with pytest.raises(EngineStartError, match=str(tmp_path)):
        AsyncLLM(tmp_path, engine="process")


def test_the_front_end_imports_neither_torch_nor_numpy(directory: Path) -> None:
    program = f"""
import asyncio, sys
from octavo import AsyncLLM, SamplingParams
from octavo.options.engine import EngineArguments
from octavo.client.launcher import ProcessLauncher
from octavo.client.process import make_client
arguments = EngineArguments(model="fake", tokenizer={str(directory)!r})
client = make_client(arguments, [ProcessLauncher({FACTORY!r})])
client.start()
engine = AsyncLLM.over(client, arguments)
async def main():
    return [output async for output in engine.generate([1], SamplingParams(max_tokens=5))]
asyncio.run(main())
engine.close()
print(*sys.modules)
"""
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "octavo.api.async_llm" in loaded
    heavy = {"torch", "numpy", "ml_dtypes", "octavo.engine.build", "octavo.models.build"}
    assert not heavy & loaded
    assert not [name for name in loaded if name.startswith(("octavo.runner", "octavo.backends"))]
