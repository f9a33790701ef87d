"""The waiting sequences in one total order, which is fixed when a request is added.

    fcfs                      (0,        arrival,                     number)
    priority                  (priority, arrival,                     number)
    priority, with ageing     (0,        arrival + priority * ageing, number)

Ageing needs no clock. If all waiting sequences gain priority at the same rate, their order among
themselves never changes: a request goes before one that is more urgent by one exactly if it
arrived `ageing_seconds` earlier. A fixed order is also why preemption cannot go in circles: the
first of all living sequences stays the first until it is finished.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from octavo.core.config import CoreConfig
from octavo.core.request import Request
from octavo.core.sequence import Sequence, Status


class Policy:
    """The order of sequences, and the rule for preempting one for another."""

    def __init__(self, config: CoreConfig) -> None:
        self.by_priority = config.policy == "priority"
        self.ageing_seconds = config.ageing_seconds
        self._number = 0

    def order(self, request: Request) -> tuple[float, float, int]:
        """Return the place of a new request; the smaller goes first."""
        self._number += 1
        if not self.by_priority:
            return (0, request.arrival, self._number)
        if not self.ageing_seconds:
            return (request.priority, request.arrival, self._number)
        return (0, request.arrival + request.priority * self.ageing_seconds, self._number)

    def may_displace(self, waiting: Sequence, running: Sequence) -> bool:
        """Return whether a running sequence may be preempted for a waiting one.

        Only if the waiting one has the more urgent priority and is also first in order: an
        earlier arrival alone is no reason to throw computed KV away.
        """
        return (
            self.by_priority
            and waiting.request.priority < running.request.priority
            and waiting.order < running.order
        )


def _backwards(sequence: Sequence) -> tuple[float, float, int]:
    first, second, third = sequence.order
    return (-first, -second, -third)


class WaitingQueue:
    """The waiting sequences, sorted, with the head at the end of the list.

    The operations of a step at the head (peek, take, return a preempted one) therefore cost the
    same however many wait; only adding and aborting move pointers, 8 bytes for each waiting
    sequence. A sequence that is held is set aside: it keeps its order, but `schedule` does not
    see it.
    """

    __slots__ = ("_sequences", "held", "num_tokens")

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self.held: dict[str, Sequence] = {}
        self.num_tokens = 0  # known tokens of all sequences here, the held ones included

    def __len__(self) -> int:
        """Return how many can be admitted: all but the held ones."""
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return reversed(self._sequences)

    @property
    def num_waiting(self) -> int:
        """The number of waiting sequences, the held ones included."""
        return len(self._sequences) + len(self.held)

    def add(self, sequence: Sequence) -> None:
        """Insert a sequence at the place that its order gives it."""
        sequence.status = Status.WAITING
        sequence.num_free_needed = 0
        insort(self._sequences, sequence, key=_backwards)
        self.num_tokens += len(sequence.tokens)

    def peek(self, index: int) -> Sequence:
        """Return the sequence `index` places behind the head."""
        return self._sequences[-1 - index]

    def take(self, index: int) -> Sequence:
        """Remove and return the sequence `index` places behind the head."""
        sequence = self._sequences.pop(-1 - index)
        self.num_tokens -= len(sequence.tokens)
        return sequence

    def set_aside(self, index: int) -> Sequence:
        """Hide the sequence `index` places behind the head: it is held from now on."""
        sequence = self._sequences.pop(-1 - index)
        sequence.status = Status.HELD
        self.held[sequence.request_id] = sequence
        return sequence

    def add_held(self, sequence: Sequence) -> None:
        """Add a sequence that is held from its beginning."""
        sequence.status = Status.HELD
        self.held[sequence.request_id] = sequence
        self.num_tokens += len(sequence.tokens)

    def put_back(self, sequence: Sequence) -> None:
        """Return a sequence that was set aside to its old place."""
        del self.held[sequence.request_id]
        self.num_tokens -= len(sequence.tokens)
        self.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, whether it waits or is held."""
        self.num_tokens -= len(sequence.tokens)
        if sequence.status is Status.HELD:
            del self.held[sequence.request_id]
            return
        index = bisect_left(self._sequences, _backwards(sequence), key=_backwards)
        assert self._sequences[index] is sequence, f"{sequence.request_id} is not waiting"
        del self._sequences[index]
