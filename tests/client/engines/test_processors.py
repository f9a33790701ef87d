"""Engines compute on processors of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.client.processors import cores, divide, divided, running_on
from tests.observe.test_memory_nodes import machine


def test_cores_are_divided_with_all_their_threads() -> None:
    whole = [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert divide(whole, 1) == [[0, 4, 1, 5, 2, 6, 3, 7]]
    assert divide(whole, 2) == [[0, 4, 1, 5], [2, 6, 3, 7]]
    assert divide(whole, 3) == [[0, 4], [1, 5], [2, 6, 3, 7]]


def test_engines_get_nodes_whose_processors_have_every_other_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some machines number them so: cores 0, 2 and 4 are in one node, the odd ones in another."""
    root = machine(tmp_path, {0: "0,2,4,6", 1: "1,3,5,7"})
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {*range(8)} - {7})
    assert cores(root) == [[0], [2], [4], [6], [1], [3], [5]]
    assert divided(2, root) == [[0, 2, 4], [6, 1, 3, 5]]
    assert cores(machine(tmp_path / "no nodes", {})) == [[each] for each in range(7)]


def test_engines_share_cores_where_there_are_too_few() -> None:
    assert divide([[0], [1]], 4) == [[0], [0], [1], [1]]


def test_a_container_limits_the_cores_of_all_engines_together() -> None:
    whole = [[index] for index in range(8)]
    assert divide(whole, 2, share=4.0) == [[0, 1], [4, 5]]
    assert divide(whole, 2, share=1.0) == [[0], [4]]


def test_a_process_runs_on_its_processors_and_its_parent_on_all() -> None:
    before = os.sched_getaffinity(0)
    last = max(before)
    program = "import os; print(*os.sched_getaffinity(0))"
    with running_on([last]):
        popen = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert os.sched_getaffinity(0) == before
    assert popen.communicate()[0].decode().split() == [str(last)]


def test_one_engine_may_use_all() -> None:
    assert divided(1) == [()]
    assert len(divided(2)) == 2
