"""The waiting sequences: a line for each owner, in one total order that is fixed at the arrival.

    fcfs                      (0,        arrival,                     number)
    priority                  (priority, arrival,                     number)
    priority, with ageing     (0,        arrival + priority * ageing, number)

Ageing needs no clock. If all waiting sequences gain priority at the same rate, their order among
themselves never changes: a request goes before one that is more urgent by one exactly if it
arrived `ageing_seconds` earlier. A fixed order is also why preemption cannot go in circles: the
first of all living sequences stays the first until it is finished.

Each owner of requests has a line of its own, and another one for its background work. The order
holds within a line; fair/share.py decides whose head is next. Where requests have no owner, or
shares are off, there is one line.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from octavo.core.config import CoreConfig
from octavo.core.request import Request
from octavo.core.sequence import Line, Sequence, Status
from octavo.core.stats import TURN, WaitClock

# Lines without sequences whose counters are remembered, so that a pause does not reset them.
MAX_REMEMBERED = 1024


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

        It may be if the waiting one has the more urgent priority and is also first in order. An
        earlier arrival alone is no reason to discard computed KV.
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
    """The waiting sequences by line, each line sorted, with its head at the end of the list.

    The operations of a step at a head (look, take, return a preempted one) therefore cost the
    same however many wait; only adding and aborting move pointers, 8 bytes for each waiting
    sequence. A sequence that is held is set aside: it keeps its order, but `schedule` does not
    see it.
    """

    __slots__ = ("_is_shared", "_served", "held", "lines", "num_ready", "num_tokens", "reason")

    def __init__(self, is_shared: bool = True) -> None:
        self._is_shared = is_shared  # False: all sequences form one line
        self.num_ready = 0  # sequences that can be admitted: all but the held ones
        self.lines: dict[tuple[str, int], Line] = {}  # those with living sequences
        self._served: dict[tuple[str, int], float] = {}  # of lines that had some
        self.held: dict[str, Sequence] = {}
        self.num_tokens = 0  # kept of all sequences here, the held ones included
        self.reason = TURN  # why the sequences of a new line wait

    def __len__(self) -> int:
        """Return how many can be admitted: all but the held ones."""
        return self.num_ready

    def __iter__(self) -> Iterator[Sequence]:
        for line in self.lines.values():
            yield from reversed(line.waiting)

    @property
    def num_waiting(self) -> int:
        """The number of waiting sequences, the held ones included."""
        return self.num_ready + len(self.held)

    # lines

    def line_of(self, request: Request) -> Line:
        """Return the line of a request, a new one if its owner has none."""
        key = (request.owner, int(request.is_background)) if self._is_shared else ("", 0)
        line = self.lines.get(key)
        if line is None:
            name, rank = key
            line = Line(name, rank, request.weight, WaitClock(self.reason))
            # An unused share is not saved up: the line starts with the least that others have.
            others = [each.served for each in self.lines.values() if each.rank == rank]
            line.served = max(self._served.pop(key, 0.0), min(others, default=0.0))
            self.lines[key] = line
        line.weight = request.weight
        return line

    def leave(self, line: Line) -> None:
        """Count a sequence of this line as ended; forget the line after its last one."""
        line.num_living -= 1
        if not line.num_living:
            key = (line.name, line.rank)
            del self.lines[key]
            self._served[key] = line.served
            if len(self._served) > MAX_REMEMBERED:
                del self._served[next(iter(self._served))]

    # sequences

    def add(self, sequence: Sequence) -> None:
        """Insert a sequence at the place in its line that its order gives it."""
        sequence.status = Status.WAITING
        sequence.num_free_needed = 0
        insort(sequence.line.waiting, sequence, key=_backwards)
        self.num_ready += 1
        self.num_tokens += sequence.num_kept

    def take(self, sequence: Sequence) -> None:
        """Remove a sequence that waits, at the head of its line or behind it."""
        waiting = sequence.line.waiting
        index = len(waiting) - 1
        if waiting[-1:] != [sequence]:
            index = bisect_left(waiting, _backwards(sequence), key=_backwards)
        assert waiting[index : index + 1] == [sequence], f"{sequence.request_id} is not waiting"
        del waiting[index]
        self.num_ready -= 1
        self.num_tokens -= sequence.num_kept

    def set_aside(self, sequence: Sequence) -> None:
        """Hide a waiting sequence: it is held from now on."""
        self.take(sequence)
        self.add_held(sequence)

    def add_held(self, sequence: Sequence) -> None:
        """Add a sequence that is held."""
        sequence.status = Status.HELD
        self.held[sequence.request_id] = sequence
        self.num_tokens += sequence.num_kept

    def put_back(self, sequence: Sequence) -> None:
        """Return a sequence that was held to its place."""
        self.remove(sequence)
        self.add(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence, whether it waits or is held."""
        if sequence.status is Status.HELD:
            self.num_tokens -= sequence.num_kept
            del self.held[sequence.request_id]
        else:
            self.take(sequence)
