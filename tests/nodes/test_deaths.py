"""The end of a stage, of a node, or of the engine, under streams: nothing is lost."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, AsyncLLM
from octavo.confine.filter import why_unavailable
from octavo.core.config import ConfigError
from tests.client.clients import LIMIT, patient
from tests.nodes.running import LOCAL_HOST, Nodes, exists, has_ipv6, nodes
from tests.ranks.followers import KIND, PROMPTS, SAMPLING, wait_until
from tests.ranks.small import TIGHT, write

pytestmark = pytest.mark.slow


class Server:
    """An engine in a process of its own, and streams of it."""

    def __init__(self, model: Path, options: dict[str, Any]) -> None:
        self.llm = AsyncLLM(str(model), engine="process", **TIGHT, **options, timing=patient())
        client: Any = self.llm._client
        self.supervisor = client.engines[0].supervisor

    def engine(self) -> int:
        """Return the engine's process."""
        process = self.supervisor.run.process
        return int(getattr(process, "engine", process).popen.pid)  # beside nodes that were placed

    async def restarted(self, number: int) -> None:
        """Return when so many engines have been started again, and the last one is ready."""
        while self.supervisor.restarts.num_restarts < number or not self.supervisor.is_well():
            await asyncio.sleep(0.01)

    async def streams(self, meanwhile: Callable[[], Awaitable[None]]) -> list[list[int]]:
        """Return the tokens of all prompts; something happens once there are some."""
        seen = asyncio.Event()

        async def one(prompt: list[int]) -> list[int]:
            async for output in self.llm.generate(prompt, SAMPLING):
                seen.set()
                last = output
            return list(last.outputs[0].token_ids)

        asked = [asyncio.ensure_future(one(prompt)) for prompt in PROMPTS]
        await seen.wait()
        await meanwhile()
        return await asyncio.gather(*asked)


@contextmanager
def starting(model: Path, options: dict[str, Any]) -> Iterator[list[LLM]]:
    """Let an engine start meanwhile, which is in the list once its nodes have joined it."""
    made: list[LLM] = []

    def start() -> None:
        made.append(LLM(str(model), **TIGHT, **options))

    thread = threading.Thread(target=start)
    thread.start()
    yield made
    thread.join(LIMIT)
    made[0].close()


def expected_of(model: Path) -> list[list[int]]:
    with LLM(str(model), **TIGHT) as alone:
        outputs = alone.generate(PROMPTS, SAMPLING, use_tqdm=False)
        return [list(each.outputs[0].token_ids) for each in outputs]


def test_streams_continue_whatever_is_killed(tmp_path: Path) -> None:
    model = write(tmp_path, KIND)
    expected = expected_of(model)
    with nodes(model, tmp_path, 3) as others:
        server = Server(model, others.options)
        try:
            asyncio.run(_kill_all_in_turn(server, others, expected))
        finally:
            server.llm.close()
        wait_until(lambda: "has ended; it joins the next one" in others.log_of(2))


async def _kill_all_in_turn(server: Server, others: Nodes, expected: list[list[int]]) -> None:
    async def kill_stage() -> None:
        (stage,) = others.members_of(2)
        if why_unavailable() is None:
            assert "Seccomp:\t2" in Path(f"/proc/{stage}/status").read_text()
        os.kill(stage, signal.SIGKILL)

    async def kill_node() -> None:
        """Kill a node, with which its stages end; start another one of its rank."""
        stages = others.members_of(1)
        others.programs[1].kill()
        others.programs[1].wait(LIMIT)
        wait_until(lambda: not any(map(exists, stages)))
        others.start(1)

    async def kill_engine() -> None:
        os.kill(server.engine(), signal.SIGKILL)

    for number, kill in enumerate((kill_stage, kill_node, kill_engine), 1):
        assert await server.streams(kill) == expected
        await server.restarted(number)
    os.kill(others.members_of(1)[0], signal.SIGKILL)  # nothing is computed now
    await server.restarted(4)


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_a_stopped_stage_is_noticed_like_a_dead_one(host: str, tmp_path: Path) -> None:
    """The system of its machine acknowledges what it is sent, so that its link looks well."""
    if not has_ipv6():
        host = LOCAL_HOST
    model = write(tmp_path, KIND)
    with nodes(model, tmp_path, 2, host=host) as others:
        server = Server(model, others.options)

        async def stop_stage() -> None:
            (stage,) = others.members_of(1)
            os.kill(stage, signal.SIGSTOP)

        async def stop_under_streams() -> None:
            assert await server.streams(stop_stage) == expected_of(model)
            await server.restarted(1)

        try:
            asyncio.run(stop_under_streams())
        finally:
            server.llm.close()
        assert "gives no sign of life" in others.log_of(1)


def test_a_node_that_the_first_one_refuses_ends_and_says_why(tmp_path: Path) -> None:
    model, other = write(tmp_path, KIND), write(tmp_path / "other", "GPT2LMHeadModel")
    with nodes(model, tmp_path, 2) as others:
        others.programs[1].kill()
        others.programs[1].wait(LIMIT)
        wrong = others.start(1, other)
        with starting(model, others.options):
            assert wrong.wait(LIMIT) != 0
            assert "its model is another one" in others.log_of(1)
            others.start(1)


def test_a_node_whose_model_cannot_be_opened_ends_and_says_why(tmp_path: Path) -> None:
    """A stage that was started again would find the same."""
    model, damaged = write(tmp_path, KIND), write(tmp_path / "damaged", KIND)
    (damaged / "config.json").write_text('{"architectures": ["Unknown"]}')
    with nodes(model, tmp_path, 2) as others:
        others.programs[1].kill()
        others.programs[1].wait(LIMIT)
        assert others.start(1, damaged).wait(LIMIT) != 0
        assert "'Unknown' is not supported" in others.log_of(1)
        assert "Traceback" not in others.log_of(1)


def test_a_stage_that_cannot_load_ends_the_start(tmp_path: Path) -> None:
    """The engine, too, names the stage and the reason: more stages than the model has layers."""
    model = write(tmp_path, KIND)
    with nodes(model, tmp_path, 4) as others:
        with pytest.raises(ConfigError, match="pipeline_parallel_size=4: the model can be cut"):
            LLM(str(model), **TIGHT, **others.options)
        others.wait_for_log(3, "has ended")


@pytest.mark.parametrize("sums", [False, True])
def test_a_node_that_cannot_start_its_ranks_ends_the_start(tmp_path: Path, sums: bool) -> None:
    """The engine says why, too: here, the limit of a file's size on that node."""
    model = write(tmp_path, KIND)
    others = Nodes(model, tmp_path, 2, 2, sums=sums)
    others.options["tensor_parallel_size"] = 2
    try:
        others.start(1, prefix=["bash", "-c", 'ulimit -f 1000000; exec "$@"', "bash"])
        part = "rank" if sums else "stage"
        expected = rf"^node 1 \(\S+ at 127\.0\.0\.1\): {part} 1 of 2 did not start: .* refuses it"
        with pytest.raises(ConfigError, match=expected):
            LLM(str(model), **TIGHT, **others.options)
        assert "Traceback" not in others.log_of(1)
    finally:
        others.end()


def test_a_node_without_the_first_one_waits_and_says_so(tmp_path: Path) -> None:
    with nodes(write(tmp_path, KIND), tmp_path, 2) as others:
        others.wait_for_log(1, "node 0 is not there")
        assert others.programs[1].poll() is None
        (stage,) = others.members_of(1)
        others.programs[1].terminate()
        others.programs[1].wait(LIMIT)
        wait_until(lambda: not exists(stage))
