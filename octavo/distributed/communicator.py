"""The exchange of results between the ranks that share a model, and its form for threads."""

from __future__ import annotations

from collections.abc import Callable
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from octavo.distributed.context import ParallelContext

Floats = NDArray[np.float32]
Result = TypeVar("Result")
Values = TypeVar("Values")  # arrays of the host, or tensors of a device


class Communicator(Protocol[Values]):
    """One rank's connection to the others; all ranks make the same calls in the same order."""

    @property
    def context(self) -> ParallelContext: ...

    def all_reduce(self, values: Values) -> Values:
        """Return the sum of all ranks' arrays, added in the order of the ranks."""

    def all_gather(self, values: Values) -> Values:
        """Return all ranks' arrays side by side along the last axis, in the order of the ranks."""


class ThreadGroup:
    """Ranks that are threads of one process and exchange arrays in memory."""

    def __init__(self, ranks: int, timeout: float = 60.0) -> None:
        self.ranks = ranks
        self._timeout = timeout
        self._barrier = Barrier(ranks)
        self._values: list[Floats] = [np.zeros(0, np.float32)] * ranks

    def communicator(self, rank: int) -> ThreadCommunicator:
        return ThreadCommunicator(self, ParallelContext(rank, self.ranks))

    def exchange(
        self, rank: int, values: Floats, combine: Callable[[list[Floats]], Floats]
    ) -> Floats:
        """Combine the arrays of all ranks, once every rank has brought its own."""
        self._values[rank] = values
        self._barrier.wait(self._timeout)
        combined = combine(self._values)
        self._barrier.wait(self._timeout)  # before a rank changes its array, or brings the next
        return combined

    def run(self, work: Callable[[ThreadCommunicator], Result]) -> list[Result]:
        """Run every rank's work in a thread of its own, and return the results by rank.

        If a rank fails, the others stop at their next exchange, and its error is raised.
        """
        results: list[Any] = [None] * self.ranks
        errors: list[BaseException | None] = [None] * self.ranks

        def run_rank(rank: int) -> None:
            try:
                results[rank] = work(self.communicator(rank))
            except BaseException as error:
                errors[rank] = error
                self._barrier.abort()

        threads = [Thread(target=run_rank, args=(rank,)) for rank in range(self.ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [error for error in errors if error is not None]
        if found:
            self._barrier.reset()
            causes = [error for error in found if not isinstance(error, BrokenBarrierError)]
            raise (causes or found)[0]
        return results


class ThreadCommunicator:
    """One thread's side of a ThreadGroup; implements `Communicator`."""

    def __init__(self, group: ThreadGroup, context: ParallelContext) -> None:
        self._group = group
        self.context = context

    def all_reduce(self, values: Floats) -> Floats:
        return self._group.exchange(self.context.rank, values, _sum)

    def all_gather(self, values: Floats) -> Floats:
        return self._group.exchange(self.context.rank, values, _side_by_side)


def _sum(values: list[Floats]) -> Floats:
    total = values[0].copy()
    for other in values[1:]:
        total += other
    return total


def _side_by_side(values: list[Floats]) -> Floats:
    return np.concatenate(values, axis=-1)
