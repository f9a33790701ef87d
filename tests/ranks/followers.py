"""Processes that compute with an engine, and their ends."""

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
from octavo.api.outputs import EngineDeadError
from octavo.confine.filter import why_unavailable
from tests.client.clients import LIMIT, patient
from tests.ranks.small import TIGHT, write

KIND = "LlamaForCausalLM"
PROMPTS = [[3 + (7 * i + j) % 90 for j in range(4 + i)] for i in range(6)]
SAMPLING = SamplingParams(max_tokens=30, seed=5, temperature=1.0, ignore_eos=True)


def followers_of(pid: int, program: str) -> list[int]:
    """Return the processes of a program that one has started, which may have others too."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):  # a thread that has just ended
            found += map(int, (task / "children").read_text().split())
    return [each for each in sorted(found) if runs(each, program)]


def runs(pid: int, program: str) -> bool:
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


def check_deaths(
    directory: Path, program: str, *, dtype: str = "auto", **several: int | str
) -> None:
    """Kill a follower under streams, then one while there is no work, and at last the engine.

    Every stream must have its tokens, and no process may be left.
    """
    model = str(write(directory, KIND))
    with LLM(model, **TIGHT, dtype=dtype) as alone:
        outputs = alone.generate(PROMPTS, SAMPLING, use_tqdm=False)
        expected = [list(each.outputs[0].token_ids) for each in outputs]
    options: dict[str, Any] = {**TIGHT, **several, "dtype": dtype, "timing": patient()}
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
        os.kill(followers_of(engine(), program)[-1], signal.SIGKILL)
        assert await asyncio.gather(*asked) == expected
        await restarted(1)
        first = followers_of(engine(), program)[0]
        if why_unavailable() is None:
            assert "Seccomp:\t2" in Path(f"/proc/{first}/status").read_text()
        os.kill(first, signal.SIGKILL)  # nothing is computed now
        await restarted(2)
        assert await one(PROMPTS[0]) == expected[0]

    try:
        asyncio.run(world())
        last = followers_of(engine(), program)
        assert last
        os.kill(engine(), signal.SIGKILL)
        wait_until(lambda: not any(runs(each, program) for each in last))
    finally:
        llm.close()


def check_close(directory: Path, program: str, **several: int | str) -> None:
    """Close an engine while a step waits for a stopped follower: that ends, and so do both."""
    options: dict[str, Any] = {**TIGHT, **several}
    llm = AsyncLLM(str(write(directory, KIND)), engine="inline", **options)
    stopped = followers_of(os.getpid(), program)[-1]
    os.kill(stopped, signal.SIGSTOP)
    client: Any = llm._client

    async def world() -> None:
        async def one() -> None:
            async for _ in llm.generate(PROMPTS[0], SAMPLING):
                pytest.fail("a stopped process has computed a step")

        asked = asyncio.ensure_future(one())
        while not client._core.scheduler.in_flight:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(llm.close)
        with pytest.raises(EngineDeadError):
            await asked

    asyncio.run(world())
    assert not runs(stopped, program)
