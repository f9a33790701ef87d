"""Engines compute on processors of their own."""

from __future__ import annotations

import os
import subprocess
import sys

from octavo.client.processors import divide, divided, running_on


def test_cores_are_divided_with_all_their_threads() -> None:
    cores = [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert divide(cores, 1) == [[0, 4, 1, 5, 2, 6, 3, 7]]
    assert divide(cores, 2) == [[0, 4, 1, 5], [2, 6, 3, 7]]
    assert divide(cores, 3) == [[0, 4], [1, 5], [2, 6, 3, 7]]


def test_engines_share_cores_where_there_are_too_few() -> None:
    assert divide([[0], [1]], 4) == [[0], [0], [1], [1]]


def test_a_container_limits_the_cores_of_all_engines_together() -> None:
    cores = [[index] for index in range(8)]
    assert divide(cores, 2, share=4.0) == [[0, 1], [4, 5]]
    assert divide(cores, 2, share=1.0) == [[0], [4]]


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
