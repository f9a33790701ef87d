"""Ranks that add up on two and three nodes, their deaths and their cables: `make test-ranks`."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from octavo import LLM, SamplingParams
from octavo.confine.filter import why_unavailable
from tests.client.clients import LIMIT
from tests.nodes.cable import laid_cable
from tests.nodes.running import Nodes, exists, nodes
from tests.nodes.test_deaths import Server, starting
from tests.ranks.followers import KIND, PROMPTS, SAMPLING, followers_of, wait_until
from tests.ranks.small import FORMATS, KINDS, TIGHT, answers, write

RANK_PROGRAM = "octavo.engine.ranks.process"
# Those that normalise all heads together are refused, and with one KV head each rank has it.
ADDED = [kind for kind in KINDS if kind != "Olmo2ForCausalLM"]


def sums(ranks: int) -> dict[str, Any]:
    """Return the settings of ranks that add up, on one machine."""
    return {"tensor_parallel_size": ranks, "tensor_parallel_form": "sums"}


def expected_of(model: Path, ranks: int) -> list[list[int]]:
    """Return the streams of as many ranks on one machine."""
    with LLM(str(model), **TIGHT, **sums(ranks)) as alone:
        outputs = alone.generate(PROMPTS, SAMPLING, use_tqdm=False)
        return [list(each.outputs[0].token_ids) for each in outputs]


CASES = [
    *((kind, "bf16", 2, 2) for kind in ADDED),
    *(("LlamaForCausalLM", format_, 2, 2) for format_ in FORMATS),
    ("LlamaForCausalLM", "bf16", 4, 2),
    ("LlamaForCausalLM", "exact", 4, 4),
]


@pytest.mark.parametrize(("kind", "format_", "ranks", "count"), CASES)
def test_bits_are_those_of_one_machine(
    kind: str, format_: str, ranks: int, count: int, tmp_path: Path
) -> None:
    model, options = write(tmp_path, kind), FORMATS[format_]
    expected, _ = answers(model, **sums(ranks), **options)
    with nodes(model, tmp_path, ranks, count, sums=True) as others:
        found, _ = answers(model, **others.options, **options)
    assert found == expected


def test_threads_may_differ_between_nodes(tmp_path: Path) -> None:
    model = write(tmp_path, KIND)
    expected, _ = answers(model, **sums(2))
    others = Nodes(model, tmp_path, 2, 2, sums=True)
    try:
        others.start(1, num_threads=3)
        found, _ = answers(model, **others.options, num_threads=2)
    finally:
        others.end()
    assert found == expected


def test_samples_of_one_prompt_copy_its_block_in_every_node(tmp_path: Path) -> None:
    model = write(tmp_path, KIND)
    settings = SamplingParams(n=3, max_tokens=12, temperature=1.0, seed=3, ignore_eos=True)
    found = []
    with nodes(model, tmp_path, 2, sums=True) as others:
        for options in (sums(2), others.options):
            with LLM(str(model), **TIGHT, **options) as llm:
                (output,) = llm.generate([[*range(3, 40)]], settings, use_tqdm=False)
            found.append([list(each.token_ids) for each in output.outputs])
    assert found[0] == found[1]


def test_streams_continue_whatever_is_killed_or_stopped(tmp_path: Path) -> None:
    """Two ranks on each of two nodes; each death is that of the engine, and all meet again."""
    model = write(tmp_path, KIND)
    expected = expected_of(model, 4)
    with nodes(model, tmp_path, 4, 2, sums=True) as others:
        server = Server(model, others.options)

        def first_of_node() -> int:
            (found,) = others.members_of(1)
            return found

        def kill(pid: int, how: signal.Signals = signal.SIGKILL) -> Callable[[], Awaitable[None]]:
            async def do() -> None:
                os.kill(pid, how)

            return do

        async def kill_node() -> None:
            members = others.members_of(1)
            others.programs[1].kill()
            others.programs[1].wait(LIMIT)
            wait_until(lambda: not any(map(exists, members)))
            others.start(1)

        def ends() -> list[Callable[[], Callable[[], Awaitable[None]]]]:
            return [
                lambda: kill(first_of_node()),
                lambda: kill(followers_of(first_of_node(), RANK_PROGRAM)[0]),
                lambda: kill(followers_of(server.engine(), RANK_PROGRAM)[0]),
                lambda: kill(first_of_node(), signal.SIGSTOP),
                lambda: kill(server.engine()),
                lambda: kill_node,
            ]

        async def world() -> None:
            for number, end in enumerate(ends(), 1):
                if number == 1 and why_unavailable() is None:
                    status = Path(f"/proc/{first_of_node()}/status").read_text()
                    assert "Seccomp:\t2" in status
                assert await server.streams(end()) == expected
                await server.restarted(number)
            os.kill(first_of_node(), signal.SIGKILL)  # nothing is computed now
            await server.restarted(len(ends()) + 1)

        try:
            asyncio.run(world())
        finally:
            server.llm.close()
        assert "gives no sign of life" in others.log_of(1)


def test_an_engine_that_is_stopped_is_replaced(tmp_path: Path) -> None:
    """The front end notices that, and the node joins the next engine."""
    model = write(tmp_path, KIND)
    expected = expected_of(model, 2)
    with nodes(model, tmp_path, 2, sums=True) as others:
        server = Server(model, others.options)

        async def stop() -> None:
            os.kill(server.engine(), signal.SIGSTOP)

        async def world() -> None:
            assert await server.streams(stop) == expected
            await server.restarted(1)

        try:
            asyncio.run(world())
        finally:
            server.llm.close()


def test_a_node_with_another_secret_is_kept_away_until_it_has_the_right_one(
    tmp_path: Path,
) -> None:
    model = write(tmp_path, KIND)
    others = Nodes(model, tmp_path, 2, 2, sums=True)
    wrong = tmp_path / "wrong"
    wrong.write_text("another secret of the tests, as long as the right one\n")
    try:
        others.start(1, link_secret_file=str(wrong))
        with starting(model, others.options) as made:
            others.wait_for_log(1, "the first node has another secret")
            assert not made
            others.programs[1].kill()
            others.programs[1].wait(LIMIT)
            others.start(1)
    finally:
        others.end()


def test_nodes_that_divide_something_else_are_refused(tmp_path: Path) -> None:
    model = write(tmp_path, KIND)
    others, stages = (Nodes(model, tmp_path, 2, 2, sums=each) for each in (True, False))
    stages.options["master_port"] = others.options["master_port"]
    try:
        wrong = stages.start(1)
        with starting(model, others.options):
            assert wrong.wait(LIMIT) != 0
            assert "its --pipeline-parallel-size is 2" in stages.log_of(1)
            others.start(1)
    finally:
        stages.end()
        others.end()


def test_streams_continue_when_a_cable_was_cut(tmp_path: Path) -> None:
    """Bits are equal over a cable that loses packets; one that is cut ends the engine."""
    model = write(tmp_path, KIND)
    expected = expected_of(model, 2)
    with laid_cable() as cable:
        others = Nodes(model, tmp_path, 2, 2, cable.hosts[0], sums=True)
        others.start(1, prefix=cable.prefix(1))
        cable.shape("tbf rate 8mbit burst 2k limit 3k")

        async def cut() -> None:
            cable.cut()
            await asyncio.to_thread(others.wait_for_log, 1, "cannot join")
            cable.mend()

        async def nothing() -> None:
            pass

        async def world(server: Server) -> None:
            assert await server.streams(nothing) == expected
            assert await server.streams(cut) == expected
            await server.restarted(1)

        try:
            with cable.inside(0):
                server = Server(model, others.options)
                try:
                    asyncio.run(world(server))
                finally:
                    server.llm.close()
        finally:
            others.end()
