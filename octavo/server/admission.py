"""Who gets to the engine, and when: a bounded queue at the door, fair between keys.

    knock ──▶ (prompt is prepared) ──▶ wait ──▶ inside ──▶ leave
      429: too many wait, or too         429: too many tokens wait, or the deadline
      many bytes                              cannot be met

Fairness is by virtual tokens: every key has a counter of what it was given, and the key with the
lowest is next. A key that comes back after a rest begins at the lowest of those that wait, so
rest is not saved up. The engine is handed little more than it can run at once: what waits inside
it is in its order, not in ours.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from octavo.server.http.errors import ApiError, too_many
from octavo.server.settings import ServerSettings

OUTPUT_WEIGHT = 2  # a generated token costs about this many of a prompt
RATE_SECONDS = 30.0  # over which the rate of ends is taken
MAX_RETRY_SECONDS = 120


@dataclass(slots=True)
class _Lane:
    """One key's requests."""

    waiting: list[tuple[int, int, Ticket]]
    served: float = 0.0  # virtual tokens
    last_turn: int = 0  # of equals, the one that has waited longest since its last
    num_inside: int = 0


class Admission:
    """The door of one server. It is used from one event loop."""

    def __init__(
        self,
        config: ServerSettings,
        max_num_seqs: int,
        clock: Callable[[], float],
        count: Callable[[str], None],
    ) -> None:
        self._config = config
        self._clock = clock
        self._count = count  # rejections, by reason
        # A little more than runs, so that the engine always has who is next.
        self._room = config.max_running_sequences or max_num_seqs + max(4, max_num_seqs // 4)
        self._lanes: dict[str, _Lane] = {}
        self._ends: deque[float] = deque(maxlen=1024)
        self._serial = 0
        self.num_turns = 0
        self.num_waiting = 0  # being prepared, or in line
        self.waiting_tokens = 0
        self.waiting_bytes = 0
        self.num_inside = 0  # sequences
        self._num_tickets = 0

    @property
    def num_open(self) -> int:
        """Requests that have come in and have not left."""
        return self._num_tickets

    def knock(self, owner: str, num_bytes: int) -> Ticket:
        """A place at the door for a request that has just come; nothing of it is read yet."""
        config = self._config
        if self.num_waiting >= config.max_waiting_requests:
            raise self.rejected("queue_full", f"{self.num_waiting} requests wait already")
        if self.waiting_bytes + num_bytes > config.max_waiting_bytes and self.num_waiting:
            raise self.rejected("bytes", f"{self.waiting_bytes} bytes of requests wait already")
        return Ticket(self, owner, num_bytes)

    def seconds_to_wait(self, num_ahead: int | None = None) -> float:
        """An estimate for one who comes now, from how fast requests have ended of late."""
        if num_ahead is None:
            num_ahead = self.num_waiting
        if self.num_inside < self._room and not num_ahead:
            return 0.0
        now = self._clock()
        while self._ends and now - self._ends[0] > RATE_SECONDS:
            self._ends.popleft()
        if not self._ends:
            return 1.0 + num_ahead / self._room
        span = max(0.1, now - self._ends[0])
        return (num_ahead + 1) * span / len(self._ends)

    def check_deadline(self, seconds: float) -> None:
        """Refuse one that has just knocked and would only be cancelled later."""
        expected = self.seconds_to_wait(self.num_waiting - 1)
        if expected > seconds:
            raise self.rejected(
                "deadline",
                f"the deadline is in {seconds:.3f} s and the queue takes about {expected:.1f} s",
            )

    def rejected(self, reason: str, message: str) -> ApiError:
        """A refusal for now, with when to come again."""
        self._count(reason)
        seconds = min(MAX_RETRY_SECONDS, max(1, math.ceil(self.seconds_to_wait())))
        return too_many(f"{message}; try again in {seconds} s", seconds, reason)

    # for tickets

    def _lane(self, owner: str) -> _Lane:
        lane = self._lanes.get(owner)
        if lane is None:
            lane = self._lanes[owner] = _Lane([])
        return lane

    def _line_up(self, ticket: Ticket, priority: int) -> None:
        lane = self._lane(ticket.owner)
        if not (lane.waiting or lane.num_inside):
            others = [each.served for each in self._lanes.values() if each.waiting]
            lane.served = max(lane.served, min(others, default=0.0))
        self._serial += 1
        heapq.heappush(lane.waiting, (priority, self._serial, ticket))
        self._let_in()

    def _let_in(self) -> None:
        """Open the door to the lanes' first, lowest counter first, as long as there is room."""
        while True:
            lanes = [lane for lane in self._lanes.values() if lane.waiting]
            if not lanes:
                return
            lane = min(lanes, key=lambda each: (each.served, each.last_turn))
            ticket = lane.waiting[0][2]
            if self.num_inside and self.num_inside + ticket.num_sequences > self._room:
                return
            heapq.heappop(lane.waiting)
            ticket.enter(lane)


class Ticket:
    """One request's place, from the knock until it leaves."""

    def __init__(self, door: Admission, owner: str, num_bytes: int) -> None:
        self.owner = owner
        self.num_sequences = 0
        self.num_tokens = 0
        self._door = door
        self._num_bytes = num_bytes
        self._lane: _Lane | None = None
        self._turn: asyncio.Future[None] | None = None
        self._is_closed = False
        door.num_waiting += 1
        door.waiting_bytes += num_bytes
        door._num_tickets += 1

    async def wait(self, num_tokens: int, num_sequences: int, priority: int = 0) -> None:
        """Wait for the turn of a request with so many tokens of prompt, or be turned away."""
        door, limit = self._door, self._door._config.max_waiting_tokens
        if door.waiting_tokens and door.waiting_tokens + num_tokens > limit:
            raise door.rejected("tokens", f"{door.waiting_tokens} tokens of prompts wait already")
        self.num_tokens, self.num_sequences = num_tokens, num_sequences
        door.waiting_tokens += num_tokens
        self._turn = asyncio.get_running_loop().create_future()
        door._line_up(self, priority)
        await self._turn

    def enter(self, lane: _Lane) -> None:
        """Its turn has come."""
        self._stop_waiting()
        self._lane = lane
        self._door.num_turns += 1
        lane.last_turn = self._door.num_turns
        lane.num_inside += 1
        lane.served += self.num_tokens
        self._door.num_inside += self.num_sequences
        assert self._turn is not None
        if not self._turn.done():
            self._turn.set_result(None)

    def charge(self, num_tokens: int) -> None:
        """So many tokens were generated for it."""
        if self._lane is not None:
            self._lane.served += OUTPUT_WEIGHT * num_tokens

    def leave(self) -> None:
        """Wherever it stands, it is done; again is no error."""
        if self._is_closed:
            return
        self._is_closed = True
        door = self._door
        door._num_tickets -= 1
        if self._lane is None:
            self._stop_waiting()
            self._leave_line()
        else:
            self._lane.num_inside -= 1
            door.num_inside -= self.num_sequences
            door._ends.append(door._clock())
        door._let_in()

    def _leave_line(self) -> None:
        lane = self._door._lanes.get(self.owner)
        if lane is not None and self._turn is not None:
            lane.waiting = [entry for entry in lane.waiting if entry[2] is not self]
            heapq.heapify(lane.waiting)

    def _stop_waiting(self) -> None:
        self._door.num_waiting -= 1
        self._door.waiting_bytes -= self._num_bytes
        self._door.waiting_tokens -= self.num_tokens
