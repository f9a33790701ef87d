"""Ranks in threads exchange arrays in a fixed order, and a failure of one reaches the caller."""

from __future__ import annotations

import sys
from functools import partial
from threading import BrokenBarrierError
from time import sleep

import numpy as np
import pytest

from octavo.distributed.communicator import Floats, ThreadCommunicator, ThreadGroup
from octavo.distributed.context import ParallelContext


def test_ranks_are_numbered() -> None:
    contexts = ThreadGroup(3).run(lambda communicator: communicator.context)
    assert contexts == [ParallelContext(rank, 3) for rank in range(3)]


def test_a_sum_has_the_order_of_the_ranks_whichever_comes_last() -> None:
    """The sum of these numbers depends on their order."""
    values = [np.array([value], np.float32) for value in (1e8, 1.0, -1e8, 1.0)]
    assert sum(reversed(values), np.zeros(1, np.float32)) != sum(values, np.zeros(1, np.float32))

    def work(late: int, communicator: ThreadCommunicator) -> Floats:
        rank = communicator.context.rank
        sleep(0.01 * ((rank + late) % 4))
        return communicator.all_reduce(values[rank])

    for late in range(4):
        assert ThreadGroup(4).run(partial(work, late)) == [np.float32(1.0)] * 4


def test_gathered_columns_have_the_order_of_the_ranks() -> None:
    def work(communicator: ThreadCommunicator) -> Floats:
        return communicator.all_gather(np.full((2, 1), communicator.context.rank, np.float32))

    for gathered in ThreadGroup(3).run(work):
        np.testing.assert_array_equal(gathered, [[0, 1, 2], [0, 1, 2]])


def test_an_array_may_be_changed_after_the_exchange() -> None:
    """Each of many exchanges has the values of its own round, though arrays are used again."""
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def work(communicator: ThreadCommunicator) -> list[float]:
        own, sums = np.zeros(1, np.float32), []
        for _ in range(200):
            own += communicator.context.rank + 1
            sums.append(float(communicator.all_reduce(own)[0]))
        return sums

    try:
        for sums in ThreadGroup(4).run(work):
            assert sums == [10.0 * turn for turn in range(1, 201)]
    finally:
        sys.setswitchinterval(switching)


def test_the_error_of_one_rank_stops_the_others() -> None:
    """The caller gets that error, not those of the ranks that waited in vain."""

    def work(communicator: ThreadCommunicator) -> None:
        if communicator.context.rank == 1:
            raise ValueError("rank 1 cannot")
        communicator.all_reduce(np.zeros(1, np.float32))

    group = ThreadGroup(3)
    with pytest.raises(ValueError, match="rank 1 cannot"):
        group.run(work)
    assert group.run(lambda communicator: communicator.context.rank) == [0, 1, 2]


def test_a_rank_that_never_comes_is_noticed() -> None:
    def work(communicator: ThreadCommunicator) -> None:
        if communicator.context.rank:
            communicator.all_reduce(np.zeros(1, np.float32))

    with pytest.raises(BrokenBarrierError):
        ThreadGroup(2, timeout=0.05).run(work)
