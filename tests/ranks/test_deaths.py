"""The end of a rank, or of the engine, at any time: nothing is lost, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM, SamplingParams
from octavo.confine.filter import why_unavailable
from octavo.core.config import ConfigError
from octavo.engine.ranks import group
from tests.client.clients import LIMIT, patient
from tests.ranks.small import TIGHT, write

pytestmark = pytest.mark.slow
KIND = "LlamaForCausalLM"
PROGRAM = group.PROGRAM
PROMPTS = [[3 + (7 * i + j) % 90 for j in range(4 + i)] for i in range(6)]
SAMPLING = SamplingParams(max_tokens=30, seed=5, temperature=1.0, ignore_eos=True)


def ranks_of(pid: int) -> list[int]:
    """Return the ranks that a process has started."""
    return followers_of(pid, PROGRAM)


def followers_of(pid: int, program: str) -> list[int]:
    """Return the processes of a program that one has started, which may have others too."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            found += map(int, (task / "children").read_text().split())
    return [each for each in sorted(found) if runs(each, program)]


def runs(pid: int, program: str = PROGRAM) -> bool:
    """Return whether a process runs; one that has ended may wait for its parent."""
    try:
        return program.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_streams_continue_when_a_rank_is_killed(tmp_path: Path) -> None:
    """A rank dies under streams, then while there is no work, and at last the first one does."""
    model = str(write(tmp_path, KIND))
    with LLM(model, **TIGHT) as alone:
        outputs = alone.generate(PROMPTS, SAMPLING, use_tqdm=False)
        expected = [each.outputs[0].token_ids for each in outputs]
    options = {**TIGHT, "tensor_parallel_size": 2, "timing": patient()}
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
        (rank,) = ranks_of(engine())
        os.kill(rank, signal.SIGKILL)
        assert await asyncio.gather(*asked) == [list(each) for each in expected]
        await restarted(1)
        (rank,) = ranks_of(engine())
        if why_unavailable() is None:
            assert "Seccomp:\t2" in Path(f"/proc/{rank}/status").read_text()
        os.kill(rank, signal.SIGKILL)  # nothing is computed now
        await restarted(2)
        assert await one(PROMPTS[0]) == list(expected[0])

    try:
        asyncio.run(world())
        (last,) = ranks_of(engine())
        os.kill(engine(), signal.SIGKILL)
        wait_until(lambda: not runs(last))
    finally:
        llm.close()


def test_an_engine_in_this_process_says_which_rank_has_ended(tmp_path: Path) -> None:
    with LLM(str(write(tmp_path, KIND)), **TIGHT, tensor_parallel_size=2) as llm:
        ranks = llm._model.engine.ranks
        (rank,) = (each.process.pid for each in ranks._followers)
        os.kill(rank, signal.SIGKILL)
        wait_until(lambda: bool(ranks.reason))
        with pytest.raises(
            RuntimeError, match="rank 1 has ended: its process was ended by SIGKILL"
        ):
            llm.generate(PROMPTS, SAMPLING, use_tqdm=False)


def test_ranks_end_with_an_engine_that_is_closed(tmp_path: Path) -> None:
    llm = LLM(str(write(tmp_path, KIND)), **TIGHT, tensor_parallel_size=3)
    ranks = [each.process.pid for each in llm._model.engine.ranks._followers]
    assert all(map(runs, ranks))
    assert len(ranks) == 2
    llm.close()
    assert not any(map(runs, ranks))


def test_a_rank_that_cannot_start_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "PROGRAM", "octavo.no_such_program")
    with pytest.raises(ConfigError, match="rank 1 of 2 did not start: its process ended with"):
        LLM(str(write(tmp_path, KIND)), **TIGHT, tensor_parallel_size=2)
    assert not ranks_of(os.getpid())
