"""Who waits, and in which order: one total order over sequences, fixed when a request is added.

    fcfs                      (0,        arrival,                     number)
    priority                  (priority, arrival,                     number)
    priority, with ageing     (0,        arrival + priority * ageing, number)

Ageing needs no clock. If all waiting sequences gain on their priority at the same rate, their
order among themselves never changes: a request beats one that is more urgent by one just if it
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
    """What the order is, and who may take whose place."""

    def __init__(self, config: CoreConfig) -> None:
        self.by_priority = config.policy == "priority"
        self.ageing_seconds = config.ageing_seconds
        self._number = 0

    def order(self, request: Request) -> tuple[float, float, int]:
        """The place of a new request; smaller goes first."""
        self._number += 1
        if not self.by_priority:
            return (0, request.arrival, self._number)
        if not self.ageing_seconds:
            return (request.priority, request.arrival, self._number)
        return (0, request.arrival + request.priority * self.ageing_seconds, self._number)

    def may_displace(self, waiting: Sequence, running: Sequence) -> bool:
        """Whether a waiting sequence is worth preempting a running one for.

        Only if it is more urgent by its priority and also first in order: to have come earlier
        is no reason to throw computed KV away.
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
    """The waiting sequences, sorted, with the next one at the END of the list.

    So what a step does at the head (look, take, put a preempted one back) costs nothing that
    grows with the number waiting; only adding and aborting move pointers, 8 bytes for each one
    that waits. Held sequences stand aside: they keep their place, but nobody looks at them.
    """

    __slots__ = ("_sequences", "held", "num_tokens")

    def __init__(self) -> None:
        self._sequences: list[Sequence] = []
        self.held: dict[str, Sequence] = {}
        self.num_tokens = 0  # known tokens of all together, the held included

    def __len__(self) -> int:
        """How many can be looked at: all but the held."""
        return len(self._sequences)

    def __iter__(self) -> Iterator[Sequence]:
        return reversed(self._sequences)

    @property
    def num_waiting(self) -> int:
        """How many wait, the held included."""
        return len(self._sequences) + len(self.held)

    def add(self, sequence: Sequence) -> None:
        """Put a sequence in its place."""
        sequence.status = Status.WAITING
        sequence.num_free_needed = 0
        insort(self._sequences, sequence, key=_backwards)
        self.num_tokens += len(sequence.tokens)

    def peek(self, index: int) -> Sequence:
        """The sequence `index` places behind the head."""
        return self._sequences[-1 - index]

    def take(self, index: int) -> Sequence:
        """Remove and return the sequence `index` places behind the head."""
        sequence = self._sequences.pop(-1 - index)
        self.num_tokens -= len(sequence.tokens)
        return sequence

    def hold(self, index: int) -> Sequence:
        """Set the sequence `index` places behind the head aside."""
        sequence = self._sequences.pop(-1 - index)
        sequence.status = Status.HELD
        self.held[sequence.request_id] = sequence
        return sequence

    def unhold(self, sequence: Sequence) -> None:
        """Put a held sequence back in its place."""
        del self.held[sequence.request_id]
        self.num_tokens -= len(sequence.tokens)
        self.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence wherever it stands."""
        self.num_tokens -= len(sequence.tokens)
        if sequence.status is Status.HELD:
            del self.held[sequence.request_id]
            return
        index = bisect_left(self._sequences, _backwards(sequence), key=_backwards)
        assert self._sequences[index] is sequence, f"{sequence.request_id} is not waiting"
        del self._sequences[index]
