"""The shares of the owners: whose head is admitted next, and who yields a slot or blocks to whom.

What an owner holds is its *level*: the number of its running sequences, or the slots that its KV
blocks are worth if that is more (half of the blocks are worth half of the slots), divided by its
weight. A running sequence has the level that the sequences before it in its line give: the first
of each owner has level 0, and an owner with ten times as many sequences reaches ten times as high.
Running sequences are sorted by rank, level and order; background work has the last rank. Then:

1. The waiting head whose owner has the lowest level is admitted next. Among equals, it is the one
   whose owner was served fewest tokens.
2. A waiting head displaces the last running sequence of another owner if that sequence's level is
   higher than its own owner's. So each such preemption makes shares more equal, the opposite one
   is never allowed next, and an owner within its share yields nothing.
3. Where not even one sequence of each owner can run, owners take turns: a sequence that has got
   `share_quantum` tokens yields to an owner that has none running and was served less.

With one owner nothing of this applies, and nothing is computed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping
from math import inf

from octavo.core.config import CoreConfig
from octavo.core.kv.manager import KVManager
from octavo.core.lifecycle import Lifecycle, charge, place_of
from octavo.core.limits import StageShare, StepTime
from octavo.core.queue import Policy
from octavo.core.sequence import UNLIMITED, Line, Place, Sequence
from octavo.core.stats import BLOCKS, BUDGET, PRIORITY, SHARE, SLOTS

# Steps after which levels are computed again although nothing began or ceased to run: tables grow.
REFRESH_STEPS = 16


class FairShare:
    """The order among the owners of one engine."""

    def __init__(
        self,
        config: CoreConfig,
        kv: KVManager,
        lifecycle: Lifecycle,
        policy: Policy,
        pace: StepTime | None = None,
        stages: StageShare | None = None,
    ) -> None:
        self._kv = kv
        self._lifecycle = lifecycle
        self._policy = policy
        self._pace = pace
        self._stages = stages
        self._num_slots = config.max_num_seqs
        self._num_pages = config.num_blocks - 1
        self._block_size = config.block_size
        self._budget = config.max_num_batched_tokens
        self._quantum = config.share_quantum
        self._peaks: dict[int, int] = {}  # pages of a sequence, by the blocks of its tables
        self._was_shared = False
        self._num_moves = -1  # of the lifecycle at the last refresh
        self._num_steps = 0  # since then

    @property
    def is_shared(self) -> bool:
        """True if several owners, or one and its background work, have living sequences."""
        return len(self._lifecycle.queue.lines) > 1

    # before each step

    def begin(self) -> None:
        """Bring places and allotments up to date for a new step."""
        if self.is_shared:
            self._was_shared = True
            self._num_steps += 1
            moved = self._num_moves != self._lifecycle.num_moves
            if moved or self._num_steps > REFRESH_STEPS:
                self._refresh()
            self._allot()
        elif self._was_shared:
            self._was_shared = False
            self._num_moves = -1
            for sequence in self._lifecycle.running:
                sequence.place = (sequence.line.rank, 0.0, *sequence.order)
            self._lifecycle.running.sort(key=place_of)
            for line in self._lifecycle.queue.lines.values():
                line.num_pages, line.allotment, line.room = 0, UNLIMITED, inf

    def _refresh(self) -> None:
        """Give each running sequence its present place, and sort them."""
        running = self._lifecycle.running
        for line in self._lifecycle.queue.lines.values():
            line.num_running = line.num_pages = 0
        for sequence in sorted(running, key=_order_of):
            line = sequence.line
            sequence.place = (line.rank, self._level(line), *sequence.order)
            line.num_running += 1
            line.num_pages += self.pages_of(sequence)
            charge(sequence)
        running.sort(key=place_of)
        self._num_moves, self._num_steps = self._lifecycle.num_moves, 0

    def _allot(self) -> None:
        """Divide the step's tokens, without those of sequences that decode, among the lines.

        Where a goal bounds the step's time, the seconds that it leaves for prompts are divided too.
        """
        lacking: dict[Line, list[Sequence]] = {}
        num_decoding = 0
        for sequence in self._lifecycle.running:
            if sequence.catching_up:
                lacking.setdefault(sequence.line, []).append(sequence)
            else:
                # Forced tokens are several rows at once.
                num_decoding += max(1, _num_lacking(sequence)) + len(sequence.drafts)
                num_decoding += sequence.num_branched
        lines = self._lifecycle.queue.lines.values()
        for line in lines:
            if line.waiting and self._could_start(line.waiting[-1]):
                lacking.setdefault(line, []).extend(line.waiting[-8:])
        left = max(self._budget - num_decoding, self._budget // len(lines), 1)
        if self._stages is not None:
            left = min(left, self._stages.prompt_tokens)
        room, pace = inf, self._pace
        if pace is not None:
            left, room = pace.most_prompt_tokens(left), pace.room
            pace.num_lines = max(1, len(lacking))
        num_tokens = {line: sum(map(_num_lacking, each)) for line, each in lacking.items()}
        parts = _divide(left, num_tokens, _whole)
        rooms: dict[Line, float] = {}
        if pace is not None and room != inf:
            seconds = {line: sum(map(pace.seconds_for, each)) for line, each in lacking.items()}
            rooms = _divide(room, seconds)
        for line in lines:
            line.allotment = int(parts.get(line, left))
            line.room = rooms.get(line, room)

    def _could_start(self, head: Sequence) -> bool:
        """Return whether a head will get a slot and blocks in this step, as far as is known."""
        lifecycle = self._lifecycle
        if not lifecycle.running:
            return True
        if self.reason_to_displace(head, lifecycle.running[-1]) is not None:
            return True
        return bool(lifecycle.free_slots) and head.num_free_needed <= self._kv.pool.num_free

    # levels and places

    def _level(self, line: Line) -> float:
        """Return what a line's running sequences hold, in slots for each unit of weight."""
        worth = line.num_pages * self._num_slots // self._num_pages
        return max(line.num_running, worth) / line.weight

    def pages_of(self, sequence: Sequence) -> int:
        """Return how many pages a running sequence has, counted as if it shared none."""
        num_blocks = sequence.num_capacity // self._block_size
        pages = self._peaks.get(num_blocks)
        if pages is None:
            pages = self._kv.peak_pages(sequence.num_capacity)
            self._peaks[num_blocks] = pages
        return pages

    def place_for(self, sequence: Sequence) -> Place:
        """Return the place that a waiting sequence would have if it began to run now."""
        line = sequence.line
        if not self.is_shared:
            return (line.rank, 0.0, *sequence.order)
        order, before = sequence.order, Line(line.name, line.rank, line.weight, line.clock)
        for running in self._lifecycle.running:
            if running.line is line and running.order < order:
                before.num_running += 1
                before.num_pages += self.pages_of(running)
        return (line.rank, self._level(before), *order)

    def turn_of(self, head: Sequence) -> tuple[float, ...]:
        """Return the place of a waiting sequence among those of other owners."""
        line = head.line
        return (line.rank, self._level(line), line.served, *head.order)

    # which running sequences may be preempted

    def reason_to_displace(self, head: Sequence, running: Sequence) -> str | None:
        """Return why a running sequence may be preempted for a waiting one; None if it may not."""
        line = head.line
        if running.line is line:
            return PRIORITY if self._policy.may_displace(head, running) else None
        return SHARE if (line.rank, self._level(line)) < running.place[:2] else None

    def displaceable(self, head: Sequence, first: Place) -> list[tuple[Sequence, str]]:
        """Return the running sequences from `first` on that may be preempted for a head, and why.

        They are in reverse order.
        """
        found = []
        for running in reversed(self._lifecycle.running):
            if running.place < first:
                break
            reason = self.reason_to_displace(head, running)
            if reason is not None:
                found.append((running, reason))
        return found

    def num_before_urgent(self) -> int:
        """Return how many running sequences come before the waiting ones that may displace some.

        The running sequences after them must not use up the step's tokens first.
        """
        running, queue = self._lifecycle.running, self._lifecycle.queue
        least = len(running)
        if not (queue and running):
            return least
        for line in queue.lines.values():
            if not line.waiting:
                continue
            head = line.waiting[-1]
            if running[-1].line is not line and self.reason_to_displace(head, running[-1]):
                after = (line.rank, self._level(line), inf, inf, 0)
                least = min(least, bisect_right(running, after, key=place_of))
            elif self._policy.by_priority:
                own = next((each for each in reversed(running) if each.line is line), None)
                if own is not None and self._policy.may_displace(head, own):
                    place = self.place_for(head)
                    least = min(least, bisect_left(running, place, key=place_of))
        return least

    def find_turn(self, head: Sequence) -> Sequence | None:
        """Return a running sequence whose turn is over; this head's owner has none running.

        None if there is none, or if the head's owner was served as much.
        """
        found = None
        for running in self._lifecycle.running:
            rank, level, *_ = running.place
            is_over = len(running.tokens) - running.num_at_start >= self._quantum
            if rank != head.line.rank or level > 0 or not is_over:
                continue
            charge(running)
            served = running.line.served
            if served > head.line.served and (found is None or served > found.line.served):
                found = running
        return found

    # why they wait

    def reasons_to_wait(self, reason: str) -> Iterator[tuple[Line, str]]:
        """Yield each line, and why its head waits if the queue's head waits for `reason`."""
        lines = self._lifecycle.queue.lines.values()
        weights, numbers = [0.0, 0.0], [0, 0]  # by rank
        for line in lines:
            weights[line.rank] += line.weight
            numbers[line.rank] += 1
        for line in lines:
            is_for_share = reason in (SLOTS, BLOCKS, BUDGET) and (
                (line.rank and numbers[0])
                or (
                    numbers[line.rank] > 1
                    and self._level(line) * weights[line.rank] >= self._num_slots
                )
            )
            yield line, SHARE if is_for_share else reason


class Turns:
    """The waiting sequences of one step, in the order in which they may be admitted."""

    def __init__(self, fair: FairShare, lines: dict[tuple[str, int], Line]) -> None:
        self._fair = fair
        self._lines = lines
        self._passed: dict[Line, int] = {}

    def next(self) -> Sequence | None:
        """Return the next sequence; those that were returned and wait still are behind it."""
        found = None
        for line in self._lines.values():
            passed = self._passed.get(line, 0)
            if passed < len(line.waiting) and line.allotment > 0:
                head = line.waiting[-1 - passed]
                if found is None or self._fair.turn_of(head) < self._fair.turn_of(found):
                    found = head
        return found

    def skip(self, sequence: Sequence) -> None:
        """Pass over a sequence that cannot start."""
        self._passed[sequence.line] = self._passed.get(sequence.line, 0) + 1

    def end(self, line: Line) -> None:
        """Pass over all sequences of a line."""
        self._passed[line] = len(line.waiting)


def _divide(
    left: float, wanted: Mapping[Line, float], part_of: Callable[[float], float] = float
) -> dict[Line, float]:
    """Return the part of each line; one that wants less than its part leaves the rest to others."""
    parts: dict[Line, float] = {}
    for rank in (0, 1):
        hungry = [line for line in wanted if line.rank == rank]
        hungry.sort(key=lambda line: wanted[line] / line.weight)
        weight = sum([line.weight for line in hungry])
        for line in hungry:
            part = parts[line] = part_of(left * line.weight / weight)
            left = max(0, left - min(part, wanted[line]))
            weight -= line.weight
    return parts


def _whole(num_tokens: float) -> int:
    return max(1, int(num_tokens))


def _num_lacking(sequence: Sequence) -> int:
    return sequence.num_expected - sequence.num_planned


def _order_of(sequence: Sequence) -> tuple[float, float, int]:
    return sequence.order
