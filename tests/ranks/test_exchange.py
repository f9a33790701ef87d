"""The memory that ranks share: messages, barriers and ends, here between threads of one process."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np
import pytest

from octavo.backends.native import _native
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.native.packing import Packer
from octavo.backends.native.ranks.messages import LeadingBackend, follow
from octavo.backends.stored_rows import StoredRows
from octavo.distributed.context import RankPlace
from octavo.layers import Linear
from tests.backends.native import _native_test

BYTES = 16 << 20
ROUNDS = 300


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("ranks")
    os.ftruncate(descriptor, BYTES)
    yield descriptor
    os.close(descriptor)


def teams(memory: int, ranks: int, threads: int = 1) -> list[_native_test.TestTeam]:
    return [_native_test.TestTeam(threads, memory, BYTES, rank, ranks) for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 5])
def test_every_rank_takes_every_message_once(memory: int, ranks: int) -> None:
    first, *others = teams(memory, ranks)
    with ThreadPoolExecutor(ranks) as pool:
        taken = [pool.submit(other.take, ROUNDS) for other in others]
        first.post(ROUNDS, 5000)
    expected = sum(round_ % 256 for round_ in range(ROUNDS))
    assert [each.result() for each in taken] == [expected] * (ranks - 1)


@pytest.mark.parametrize(("ranks", "threads"), [(2, 1), (3, 2), (2, 9)])  # 18 are two levels
def test_all_threads_of_all_ranks_meet(memory: int, ranks: int, threads: int) -> None:
    with ThreadPoolExecutor(ranks) as pool:
        passing = [pool.submit(each.pass_barriers, 50) for each in teams(memory, ranks, threads)]
    assert [each.result() for each in passing] == [50 * threads] * ranks


def test_a_rank_that_runs_out_of_memory_ends_the_others(memory: int) -> None:
    first, second = teams(memory, 2)
    with ThreadPoolExecutor(2) as pool:
        failing = pool.submit(second.pass_barriers, 50, 0, 20)
        waiting = pool.submit(first.pass_barriers, 50)
    with pytest.raises(MemoryError):
        failing.result()
    with pytest.raises(RuntimeError, match="a rank has ended"):
        waiting.result()


@pytest.mark.parametrize("waiting", ["a barrier", "a message", "an answer"])
def test_whoever_waits_learns_why_the_group_has_ended(memory: int, waiting: str) -> None:
    first, second = teams(memory, 2)
    with ThreadPoolExecutor(1) as pool:
        work = {
            "a barrier": lambda: first.pass_barriers(1),
            "a message": lambda: second.take(1),
            "an answer": lambda: first.post(1, 8),
        }
        waits = pool.submit(work[waiting])
        second.end("rank 1 has ended: why")
        second.end("a later reason")
        with pytest.raises(RuntimeError, match="rank 1 has ended: why"):
            waits.result()
    with pytest.raises(RuntimeError, match="rank 1 has ended: why"):
        first.post(1, 8)


def test_sizes_that_do_not_agree_are_refused(memory: int) -> None:
    _native.Ranks(memory, BYTES, 0, 2, 1)
    with pytest.raises(ValueError, match="rank 1 has 2 threads, and another one 1"):
        _native.Ranks(memory, BYTES, 1, 2, 2)
    for rank, num_bytes in ((2, BYTES), (0, 4096)):
        with pytest.raises(ValueError, match="one of its group"):
            _native.Ranks(memory, num_bytes, rank, 2, 1)


def test_memory_that_is_lent_is_lent_again(memory: int) -> None:
    """Neighbours that were returned in any order are one piece."""
    ranks = _native.Ranks(memory, BYTES, 0, 2, 1)
    rows = BYTES // 4096 // 4  # so many take a quarter of the memory
    for order in itertools.permutations(range(3)):
        lent: list[_native.LentRows | None] = [ranks.lend_rows(rows, 1024) for _ in range(3)]
        with pytest.raises(MemoryError):
            ranks.lend_rows(rows, 1024)
        for index in order:
            lent[index] = None
        whole = ranks.lend_rows(3 * rows, 1024)
        del whole


def test_rows_of_other_ranks_are_there_when_they_are_read(memory: int) -> None:
    """However long another rank takes for what it was asked for."""
    place = RankPlace(0, 2, memory, BYTES)
    first = LeadingBackend(NativeOptions(num_threads=1, place=place))
    second = _native.Ranks(memory, BYTES, 1, 2, 1)
    values = np.arange(4 * 32 * 32, dtype=np.float32).reshape(-1, 32)
    packer = Packer(_native.Team(1, False), "float32")
    matrix = packer.matrix([StoredRows.of(values)], Linear(32, len(values))).pieces[0].native
    packer.finish()

    class Slow:
        native_programs: tuple[()] = ()
        ranks = second

        def piece(self, path: str, number: int) -> _native.Matrix:
            time.sleep(0.05)  # nothing depends on how long it is
            assert (path, number) == ("a layer", 3)
            return matrix

    first.piece = lambda path, number: matrix  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(follow, cast("NativeBackend", Slow()), "rank 1")
        assert np.array_equal(first.read_rows("a layer", 3, 8, 100), values[8:108])
        assert first.ranks is not None
        again = first.ranks.lend_rows(100, 32)
        assert not again.values.any()  # as memory that is new
        first.ranks.end("it is over")
        with pytest.raises(RuntimeError, match="it is over"):
            following.result()
