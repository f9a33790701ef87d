"""What the first node says of a process on another: which it is, on which machine, and why."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo import LLM
from octavo.engine.nodes import headless
from octavo.engine.nodes.messages import StartNode
from octavo.engine.ranks.link import Link, Sign
from octavo.options.engine import read_arguments
from tests.client.clients import LIMIT
from tests.nodes.running import Nodes, nodes
from tests.nodes.test_deaths import starting
from tests.ranks.followers import KIND, PROMPTS, SAMPLING, followers_of, wait_until
from tests.ranks.small import TIGHT, write

pytestmark = pytest.mark.slow

RANK_PROGRAM = "octavo.engine.ranks.process"
ELSEWHERE = r"node 1 \(\S+ at 127\.0\.0\.1\): "
KILLED = "its process was ended by SIGKILL"


def reason_after(llm: LLM, pid: int) -> str:
    """Kill a process of another node; return what the engine says, which its requests get too."""
    ranks = llm._model.engine.ranks
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: bool(ranks.reason))
    with pytest.raises(RuntimeError):
        llm.generate(PROMPTS, SAMPLING, use_tqdm=False)
    return str(ranks.reason)


def test_the_end_of_any_rank_of_another_node_has_its_number_and_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next engine says why the node's first rank has ended, whose connection was all's."""
    model = write(tmp_path, KIND)
    with nodes(model, tmp_path, 4, 2, sums=True) as others:
        with LLM(str(model), **TIGHT, **others.options) as llm:
            (first,) = others.members_of(1)
            (second,) = followers_of(first, RANK_PROGRAM)
            found = reason_after(llm, second)
        assert re.fullmatch(f"{ELSEWHERE}rank 3 has ended: {KILLED}", found)
        assert f"{found}, and the engine ends with it" in caplog.text
        others.wait_for_log(1, f"rank 3 has ended: {KILLED}; it starts again")
        with LLM(str(model), **TIGHT, **others.options) as llm:
            (first,) = others.members_of(1)
            found = reason_after(llm, first)
        assert re.fullmatch(f"{ELSEWHERE}rank 2 has ended: its connection has ended.*", found)
        caplog.clear()
        with LLM(str(model), **TIGHT, **others.options):
            expected = f"{ELSEWHERE}rank 2 has ended: {KILLED}, before this engine"
            assert re.search(expected, caplog.text)


@pytest.mark.parametrize(
    ("model_of_node", "why"),
    [("damaged", "'Unknown' is not supported"), ("absent", "there is no model '.*absent'")],
)
def test_a_node_that_cannot_read_its_model_says_so_to_the_first(
    model_of_node: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, damaged = write(tmp_path, KIND), tmp_path / "damaged"
    shutil.copytree(model, damaged)
    (damaged / "config.json").write_text('{"architectures": ["Unknown"]}')
    others = Nodes(model, tmp_path, 2, 2)
    caplog.set_level(logging.INFO)
    expected = re.compile(f"{ELSEWHERE}.*{why}")
    try:
        with starting(model, others.options):
            wait_until(lambda: "waiting for node 1" in caplog.text)
            assert others.start(1, tmp_path / model_of_node).wait(LIMIT) != 0
            wait_until(lambda: bool(expected.search(caplog.text)))
            others.start(1)
    finally:
        others.end()


@pytest.mark.parametrize(
    ("signs", "status", "expected"),
    [
        ([Sign("rank 3 has ended: no memory")], 4, "rank 3 has ended: no memory"),
        ([Sign()], -9, f"rank 2 has ended: {KILLED}"),
        ([], 0, "rank 2 has ended: with its engine"),
    ],
)
def test_the_program_of_a_node_that_is_placed_says_which_of_its_ranks_has_ended(
    signs: list[Sign], status: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process: Any = SimpleNamespace(wait=lambda seconds: status, returncode=status)
    ours, theirs = socket.socketpair()
    monkeypatch.setattr(headless, "launch", lambda program, words: (process, Link(ours)))
    arguments = read_arguments(
        "m",
        {"tensor_parallel_size": 4, "tensor_parallel_form": "sums", "nnodes": 2}
        | {"node_rank": 1, "headless": True},
    )
    node = headless.Node(arguments, is_for_one_engine=True)
    other = Link(theirs)
    for sign in signs:
        other.send(sign)
    theirs.shutdown(socket.SHUT_WR)
    with pytest.raises(headless.MemberEndedError, match=f"^{expected}$"):
        node.serve()
    start = other.receive(StartNode)
    assert start is not None
    assert (start.member, start.ended) == (1, "")
    theirs.close()
