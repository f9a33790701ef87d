"""The admission queue: limits what waits for the engine, and shares the engine between keys.

    register ──▶ (prompt is prepared) ──▶ wait ──▶ admitted ──▶ leave
      429: too many requests or             429: too many tokens wait, or
      bytes wait                                 the deadline cannot be met

Each key has a counter of the tokens that it was served, and the key with the lowest counter is
next. A key that has less than its part of the engine (the capacity divided by the keys that use
it) does not wait for one that fills it: it is admitted beyond the capacity, and the engine's
shares (octavo/core/admission/share.py) make room for it. A key that returns after a pause starts
at the lowest counter of the waiting keys, so that a pause saves nothing up. While others wait, were
refused lately, or may come because there are several keys, a key that has its share of the waiting
places may not take the last quarter of them: a full queue of one key would refuse all other keys,
however little they ask for. The engine is given little more than it can run at once, because
requests that wait inside it are in the engine's order and no longer in this one.

Requests in the background, of batches and of responses that no client waits for, have keys of their
own here. They are admitted when no other waits, into three quarters of the places, and have no
effect on the counters of others; nor do others wait for them.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from octavo.options.server import ServerSettings
from octavo.transport.errors import ApiError, too_many

OUTPUT_WEIGHT = 2  # prompt tokens that cost about as much as one generated token
RATE_SECONDS = 30.0  # window in which finished requests are counted
MAX_RETRY_SECONDS = 120
CLAIM_SECONDS = 30.0  # for which a key that was refused counts as waiting


@dataclass(slots=True)
class _KeyQueue:
    """The waiting requests of one key, and what it was served."""

    waiting: list[tuple[int, int, Ticket]]  # without those that are being prepared
    is_background: bool = False
    num_waiting: int = 0  # with them
    waiting_bytes: int = 0
    waiting_tokens: int = 0
    refused_at: float = -math.inf  # when last
    served: float = 0.0  # tokens, generated ones weighted
    last_admission: int = 0  # among equals the key that has waited longest is next
    num_admitted: int = 0
    num_sequences: int = 0  # of those

    @property
    def is_active(self) -> bool:
        """True if a request of this key waits, or is in the engine."""
        return bool(self.waiting or self.num_admitted)


class Admission:
    """The admission queue of one server; all calls come from one event loop."""

    def __init__(
        self,
        config: ServerSettings,
        max_num_seqs: int,  # that an engine runs at once
        clock: Callable[[], float],
        count: Callable[[str], None],
        *,
        is_shared: bool = False,
    ) -> None:
        self._is_shared = is_shared  # the engine gives each key its share
        self._config = config
        self._clock = clock
        self._count = count  # rejections, by reason
        # A little more than an engine runs, so that it always has a next request.
        self._of_engine = max_num_seqs + max(4, max_num_seqs // 4)
        self._capacity = config.max_running_sequences or self._of_engine
        self._queues: dict[str, _KeyQueue] = {}
        self._ends: deque[float] = deque(maxlen=1024)
        self._serial = 0
        self._reached = 0.0  # the highest counter of a key when a request of it was admitted
        self._num_queued = 0  # in the queues of all keys
        self.num_admissions = 0  # since the start
        self.num_waiting = 0  # being prepared, or in the queue
        self.waiting_tokens = 0
        self.waiting_bytes = 0
        self.num_admitted = 0  # sequences
        self._num_behind = 0  # those of them that run in the background
        self.num_open = 0  # registered requests that have not left
        self.is_held = False  # no request is admitted until `release`
        self._num_background = 0  # of those that wait
        self.on_room: Callable[[], None] = lambda: None  # called when there may be more room

    @property
    def capacity(self) -> int:
        """The number of sequences that are admitted at once."""
        return self._capacity

    def resize(self, num_engines: int) -> None:
        """Admit as many as so many engines run, unless the settings say how many.

        Without an engine there is room for those of one, which continue with the next.
        """
        if self._config.max_running_sequences is None:
            self._capacity = self._of_engine * max(1, num_engines)
            self._admit_next()
            self.on_room()

    @property
    def background_capacity(self) -> int:
        """The number of those that the server's own requests may take."""
        return max(1, self._capacity * 3 // 4)

    def by_owner(self) -> list[tuple[str, int, int]]:
        """Return each key's name, its sequences in the engine, and its waiting requests.

        There are as many as the server has keys, and as many again for their background work.
        """
        return [
            (name, queue.num_sequences, queue.num_waiting) for name, queue in self._queues.items()
        ]

    def has_background_room(self) -> bool:
        """Return whether a request that may wait for all others would be admitted now."""
        if self.is_held or self.num_waiting > self._num_background:
            return False
        return self.num_admitted + self._num_background < self.background_capacity

    def register(self, owner: str, num_bytes: int, *, is_background: bool = False) -> Ticket:
        """Count a new request, whose body is not read yet, or raise ApiError if too many wait."""
        config = self._config
        name = f"background of {owner}" if is_background else owner
        queue = self._queues.get(name)
        if queue is None:
            queue = self._queues[name] = _KeyQueue([], is_background)
        most = config.max_waiting_requests
        after = self.num_waiting + 1
        if self.num_waiting and self._is_full(queue, after, queue.num_waiting, most):
            raise self.rejected(
                "queue_full", f"waiting requests: {self.num_waiting}, of {most} allowed"
            )
        if self.num_waiting:
            self._check_bytes(queue, num_bytes)
        return Ticket(self, queue, num_bytes)

    def seconds_to_wait(self, num_ahead: int | None = None) -> float:
        """Estimate the wait of a new request from how fast requests ended recently."""
        if num_ahead is None:
            num_ahead = self.num_waiting
        if self.num_admitted < self._capacity and not num_ahead:
            return 0.0
        now = self._clock()
        while self._ends and now - self._ends[0] > RATE_SECONDS:
            self._ends.popleft()
        if not self._ends:
            return 1.0 + num_ahead / self._capacity
        span = max(0.1, now - self._ends[0])
        return (num_ahead + 1) * span / len(self._ends)

    def check_deadline(self, seconds: float) -> None:
        """Raise ApiError for a registered request that could not meet its deadline."""
        expected = self.seconds_to_wait(self.num_waiting - 1)
        if expected > seconds:
            raise self.rejected(
                "deadline",
                f"the deadline is in {seconds:.3f} s and the queue takes about {expected:.1f} s",
            )

    def rejected(self, reason: str, message: str) -> ApiError:
        """Return the error for a request that may be sent again, with the time to wait."""
        self._count(reason)
        seconds = min(MAX_RETRY_SECONDS, max(1, math.ceil(self.seconds_to_wait())))
        return too_many(f"{message}; try again in {seconds} s", seconds, reason)

    def _check_bytes(self, queue: _KeyQueue, num_bytes: int) -> None:
        """Raise ApiError if so many more bytes of a key would be too many."""
        most = self._config.max_waiting_bytes
        if self._is_full(queue, self.waiting_bytes + num_bytes, queue.waiting_bytes, most):
            raise self.rejected(
                "bytes",
                f"{self.waiting_bytes} bytes of requests are waiting, and with this one's "
                f"{num_bytes} they would be more than the {most} allowed",
            )

    def _is_full(self, queue: _KeyQueue, after: int, own: int, most: int) -> bool:
        """Return whether all keys together would hold more than this key may fill up to.

        `own` is what the key holds already, and `most` the limit for all keys.
        """
        if after <= most * 3 // 4:
            return False
        if after <= most and not queue.is_background:
            since = self._clock() - CLAIM_SECONDS
            num_others = sum(
                each.num_waiting > 0 or each.refused_at > since
                for each in self._queues.values()
                if each is not queue
            )
            if len(self._config.api_keys) > 1:  # another may come at any time
                num_others = max(1, num_others)
            if not num_others or own < most // (num_others + 1):
                return False
        queue.refused_at = self._clock()
        return True

    def hold(self) -> None:
        """Admit no request until `release`; those that come wait."""
        self.is_held = True

    def release(self) -> None:
        """Admit requests again, those that have waited first."""
        self.is_held = False
        self._admit_next()

    # called by tickets

    def _enqueue(self, ticket: Ticket, queue: _KeyQueue, priority: int) -> None:
        if not (queue.waiting or queue.num_admitted):
            others = [
                each.served
                for each in self._queues.values()
                if each.waiting and not each.is_background
            ]
            queue.served = max(queue.served, min(others, default=0.0))
        self._raise(queue)
        self._serial += 1
        self._num_queued += 1
        heapq.heappush(queue.waiting, (priority, self._serial, ticket))
        self._admit_next()

    def _raise(self, queue: _KeyQueue) -> None:
        """Raise a key's counter to what keys have reached.

        A key is not behind others because they used what was free.
        """
        queue.served = max(queue.served, self._reached)

    def _admit_next(self) -> None:
        """Admit requests, of the key with the lowest counter first, until the engine is full."""
        while self._num_queued and not self.is_held:
            queues = [queue for queue in self._queues.values() if queue.waiting]
            queue = min(queues, key=_turn_of)
            if not self._has_room(queue, queue.waiting[0][2].num_sequences):
                most = self._capacity // self._num_keys()  # the part of each
                queues = [each for each in queues if self._has_less(each, most)]
                if not queues:
                    return
                queue = min(queues, key=_turn_of)
            ticket = heapq.heappop(queue.waiting)[2]
            self._num_queued -= 1
            ticket.admit()

    def _has_room(self, queue: _KeyQueue, num_sequences: int) -> bool:
        """Return whether a request of a key may enter the engine."""
        num_before, most = self.num_admitted, self._capacity
        if queue.is_background:
            most = self.background_capacity
        elif self._is_shared:
            num_before -= self._num_behind  # these yield their slots to it
        return not num_before or num_before + num_sequences <= most

    def _has_less(self, queue: _KeyQueue, most: int) -> bool:
        """Return whether a key has less of the engine than its part, so that it need not wait."""
        if queue.is_background or not self._is_shared:
            return False
        num_after = queue.num_sequences + queue.waiting[0][2].num_sequences
        return not queue.num_sequences or num_after <= most

    def _num_keys(self) -> int:
        """Return how many keys have requests that wait or run, at least 1."""
        queues = self._queues.values()
        return max(1, sum(each.is_active and not each.is_background for each in queues))


def _turn_of(queue: _KeyQueue) -> tuple[bool, float, int]:
    """Return the place of a key in the order of turns."""
    return queue.is_background, queue.served, queue.last_admission


class Ticket:
    """One request, or one prompt of several, from its registration until it leaves."""

    def __init__(self, admission: Admission, queue: _KeyQueue, num_bytes: int) -> None:
        self.num_sequences = 0
        self.num_tokens = 0
        self._admission = admission
        self._queue = queue
        self._num_bytes = num_bytes
        self._is_admitted = False
        self._admitted: asyncio.Future[None] | None = None
        self._is_closed = False
        self._count_waiting(1)
        admission.num_open += 1

    def add_bytes(self, num_bytes: int) -> None:
        """Count what is made of a body as waiting too; raise ApiError if that is too much."""
        if not num_bytes:
            return
        admission = self._admission
        if admission.num_waiting > 1:  # one request alone always has room
            admission._check_bytes(self._queue, num_bytes)
        self._num_bytes += num_bytes
        for each in (admission, self._queue):
            each.waiting_bytes += num_bytes

    async def wait(
        self, num_tokens: int, num_sequences: int, priority: int = 0, num_behind: int = 0
    ) -> None:
        """Wait until the request is admitted; raise ApiError if too many tokens wait.

        `num_behind` is the number of tokens of its further prompts. They count as waiting until
        `wait_for_another` or `hold_back` takes them off.
        """
        admission, limit = self._admission, self._admission._config.max_waiting_tokens
        queue = self._queue
        after = admission.waiting_tokens + num_tokens + num_behind
        if admission.waiting_tokens and admission._is_full(
            queue, after, queue.waiting_tokens, limit
        ):
            raise admission.rejected(
                "tokens",
                f"{admission.waiting_tokens} prompt tokens are waiting, and with this request's "
                f"{num_tokens + num_behind} they would be more than the {limit} allowed",
            )
        self.hold_back(num_behind)
        try:
            await self._take_turn(num_tokens, num_sequences, priority)
        except BaseException:
            self.hold_back(-num_behind)
            raise

    async def wait_for_another(self, num_tokens: int, num_sequences: int, priority: int) -> Ticket:
        """Wait for the turn of a further prompt of this request; return its ticket."""
        ticket = Ticket(self._admission, self._queue, 0)
        self.hold_back(-num_tokens)
        try:
            await ticket._take_turn(num_tokens, num_sequences, priority)
        except BaseException:
            ticket.leave()
            raise
        return ticket

    async def _take_turn(self, num_tokens: int, num_sequences: int, priority: int) -> None:
        admission, queue = self._admission, self._queue
        # Else a prompt with many samples would wait until the engine is empty, and all behind it.
        most = max(1, admission._capacity // 2)
        self.num_tokens, self.num_sequences = num_tokens, min(num_sequences, most)
        admission.waiting_tokens += num_tokens
        queue.waiting_tokens += num_tokens
        has_room = admission._has_room(queue, self.num_sequences)
        if has_room and not (admission._num_queued or admission.is_held):
            admission._raise(queue)
            self.admit()
        else:
            self._admitted = asyncio.get_running_loop().create_future()
            admission._enqueue(self, queue, priority)
            await self._admitted

    def admit(self) -> None:
        """Count the request as the engine's, and no longer as waiting."""
        admission, queue = self._admission, self._queue
        self._count_waiting(-1)
        self._is_admitted = True
        admission.num_admissions += 1
        queue.last_admission = admission.num_admissions
        queue.num_admitted += 1
        self._count_admitted(self.num_sequences)
        if not queue.is_background:
            admission._reached = max(admission._reached, queue.served)
        queue.served += self.num_tokens
        if self._admitted is not None and not self._admitted.done():
            self._admitted.set_result(None)

    def count_output(self, num_tokens: int) -> None:
        """Add generated tokens to the counter of the request's key."""
        if self._is_admitted:
            self._queue.served += OUTPUT_WEIGHT * num_tokens

    def leave(self) -> None:
        """Remove the request, whether it waits or was admitted; a second call does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        admission = self._admission
        admission.num_open -= 1
        if not self._is_admitted:
            self._count_waiting(-1)
            self._leave_queue()
        else:
            self._queue.num_admitted -= 1
            self._count_admitted(-self.num_sequences)
            admission._ends.append(admission._clock())
        admission._admit_next()
        admission.on_room()

    def _count_admitted(self, num_sequences: int) -> None:
        """Count more sequences as the engine's, or fewer."""
        self._queue.num_sequences += num_sequences
        self._admission.num_admitted += num_sequences
        if self._queue.is_background:
            self._admission._num_behind += num_sequences

    def _leave_queue(self) -> None:
        queue = self._queue
        if self._admitted is not None:
            left = [entry for entry in queue.waiting if entry[2] is not self]
            self._admission._num_queued -= len(queue.waiting) - len(left)
            queue.waiting = left
            heapq.heapify(queue.waiting)

    def hold_back(self, num_tokens: int) -> None:
        """Count more tokens of further prompts as waiting, or fewer."""
        self._admission.waiting_tokens += num_tokens
        self._queue.waiting_tokens += num_tokens

    def _count_waiting(self, sign: int) -> None:
        """Count the request as waiting, or (-1) no longer, for all keys and for its own."""
        self._admission._num_background += sign * self._queue.is_background
        for each in (self._admission, self._queue):
            each.num_waiting += sign
            each.waiting_bytes += sign * self._num_bytes
            each.waiting_tokens += sign * self.num_tokens
