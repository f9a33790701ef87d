"""The end of a stage, or of the engine, at any time: nothing is lost, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM
from octavo.confine.filter import why_unavailable
from octavo.core.config import ConfigError
from octavo.engine.stages import group
from tests.client.clients import patient
from tests.ranks.small import TIGHT, write
from tests.ranks.test_deaths import KIND, PROMPTS, SAMPLING, followers_of, runs, wait_until

pytestmark = pytest.mark.slow
PROGRAM = group.PROGRAM


def stages_of(pid: int) -> list[int]:
    """Return the stages that a process has started."""
    return followers_of(pid, PROGRAM)


def test_streams_continue_when_a_stage_is_killed(tmp_path: Path) -> None:
    """A stage dies under streams, then while there is no work, and at last the engine does."""
    model = str(write(tmp_path, KIND))
    with LLM(model, **TIGHT) as alone:
        outputs = alone.generate(PROMPTS, SAMPLING, use_tqdm=False)
        expected = [list(each.outputs[0].token_ids) for each in outputs]
    options = {**TIGHT, "pipeline_parallel_size": 3, "timing": patient()}
    llm = AsyncLLM(model, engine="process", **options)
    client: Any = llm._client
    supervisor = client.engines[0].supervisor

    def engine() -> int:
        return int(supervisor.run.process.popen.pid)

    async def restarted(number: int) -> None:
        while supervisor.restarts.num_restarts < number or not supervisor.is_well():
            await asyncio.sleep(0.01)

    async def world() -> None:
        seen = asyncio.Event()

        async def one(prompt: list[int]) -> list[int]:
            async for output in llm.generate(prompt, SAMPLING):
                seen.set()
                last = output
            return list(last.outputs[0].token_ids)

        asked = [asyncio.ensure_future(one(prompt)) for prompt in PROMPTS]
        await seen.wait()
        os.kill(stages_of(engine())[1], signal.SIGKILL)
        assert await asyncio.gather(*asked) == expected
        await restarted(1)
        first, _ = stages_of(engine())
        if why_unavailable() is None:
            assert "Seccomp:\t2" in Path(f"/proc/{first}/status").read_text()
        os.kill(first, signal.SIGKILL)  # nothing is computed now
        await restarted(2)
        assert await one(PROMPTS[0]) == expected[0]

    try:
        asyncio.run(world())
        last = stages_of(engine())
        os.kill(engine(), signal.SIGKILL)
        wait_until(lambda: not any(runs(each, PROGRAM) for each in last))
    finally:
        llm.close()


def test_an_engine_in_this_process_says_which_stage_has_ended(tmp_path: Path) -> None:
    with LLM(str(write(tmp_path, KIND)), **TIGHT, pipeline_parallel_size=2) as llm:
        stages = llm._model.engine.ranks
        (stage,) = (each.process.pid for each in stages._followers)
        os.kill(stage, signal.SIGKILL)
        wait_until(lambda: bool(stages.reason))
        assert stages.reason == "stage 1 has ended: its process was ended by SIGKILL"
        with pytest.raises(RuntimeError, match="stage 1: its connection has ended"):
            llm.generate(PROMPTS, SAMPLING, use_tqdm=False)


def test_stages_end_with_an_engine_that_is_closed(tmp_path: Path) -> None:
    llm = LLM(str(write(tmp_path, KIND)), **TIGHT, pipeline_parallel_size=3)
    stages = [each.process.pid for each in llm._model.engine.ranks._followers]
    assert len(stages) == 2
    assert all(runs(each, PROGRAM) for each in stages)
    llm.close()
    assert not any(runs(each, PROGRAM) for each in stages)


def test_a_stage_that_cannot_start_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "PROGRAM", "octavo.no_such_program")
    with pytest.raises(ConfigError, match="stage 1 of 2 did not start: its process ended with"):
        LLM(str(write(tmp_path, KIND)), **TIGHT, pipeline_parallel_size=2)
    assert not stages_of(os.getpid())
