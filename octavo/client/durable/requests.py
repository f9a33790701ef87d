"""All durable requests, in memory; the journal's file is a copy of them.

A request is kept until `seconds` after it needed the engine last. If those kept grow beyond a
bound, the key that has the most loses the request that has rested for the longest.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from octavo.client.durable.answer import Answer
from octavo.client.durable.records import (
    Began,
    Emitted,
    Forgotten,
    Model,
    Record,
    Rested,
    decode,
    stored,
)
from octavo.client.durable.writer import JournalWriter
from octavo.core.request import TokenEvent
from octavo.wire.message_types import WireError, WireEvent

log = logging.getLogger(__name__)

REQUEST_BYTES = 1024  # that a request takes besides its head and its tokens
MAX_REQUEST_BYTES = 32 << 20  # of one request; its parts must be records of the file
_KEPT_ANSWERS = 8192  # while a file is read, before those of forgotten requests are dropped
REWRITE_BYTES = 8 << 20  # that a file may have beside twice what it must have


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of what is kept."""

    seconds: float = 600.0
    num_bytes: int = 64 << 20
    num_requests: int = 4096


@dataclass(slots=True, eq=False)
class DurableRequest:
    """One request: the server's description of it, its answers so far, and whether it rests."""

    number: int
    owner: str
    request_id: str
    head: bytes
    answers: list[Answer]
    num_bytes: int = 0
    rested_at: float | None = None  # None: it needs an engine
    is_known: bool = True  # False once it was forgotten

    @property
    def began(self) -> Began:
        """The record of its beginning."""
        return Began(
            self.number,
            self.owner,
            self.request_id,
            self.answers[0].number,
            len(self.answers),
            self.head,
        )


class DurableRequests:
    """The requests of one server, found by their owner and their id."""

    def __init__(
        self,
        writer: JournalWriter,
        identity: str,
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.writer = writer
        self._identity = identity
        self._limits = limits or Limits()
        self._clock = clock
        self._requests: dict[int, DurableRequest] = {}
        self._by_name: dict[tuple[str, str], DurableRequest] = {}
        self._resting: dict[int, DurableRequest] = {}  # the one that rests for the longest first
        self._resting_of: dict[str, dict[int, DurableRequest]] = {}  # the same, by owner
        self._num_of: Counter[str] = Counter()  # requests by owner
        self._bytes_of: Counter[str] = Counter()
        self._next_number = 0  # of requests and of answers
        self.num_bytes = 0
        self.num_dropped = 0  # requests that were too large to be kept

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[DurableRequest]:
        return iter(list(self._requests.values()))

    def find(self, owner: str, request_id: str) -> DurableRequest | None:
        """Return the request of this id that this owner made, if it is still known."""
        return self._by_name.get((owner, request_id))

    # what happens to a request

    def begin(
        self, owner: str, request_id: str, head: bytes, num_answers: int
    ) -> DurableRequest | None:
        """Keep a new request; return None if there is no room for it."""
        assert (owner, request_id) not in self._by_name, "an owner's request ids are unique"
        number, self._next_number = self._next_number, self._next_number + 1 + num_answers
        request = _new(Began(number, owner, request_id, number + 1, num_answers, head))
        if request.num_bytes > MAX_REQUEST_BYTES or not self._make_room(owner, request.num_bytes):
            self.num_dropped += 1
            return None
        self._insert(request)
        self.writer.append(request.began)
        return request

    def record(self, events: Iterable[tuple[DurableRequest, Answer, TokenEvent]]) -> None:
        """Keep events of requests, which are written as one record."""
        kept: list[WireEvent] = []
        grown: list[DurableRequest] = []
        for request, answer, event in events:
            if not request.is_known:
                continue
            try:
                each = stored(event, answer.number)
            except WireError:  # a payload without a form on the wire
                self._drop(request)
                continue
            num_bytes = answer.add(each)
            if num_bytes:
                self._grow(request, num_bytes)
                grown.append(request)
            kept.append(each)
        if kept:
            self.writer.append(Emitted(tuple(kept)))
        for request in grown:
            if request.num_bytes > MAX_REQUEST_BYTES:
                self._drop(request)
        while self.num_bytes > self._limits.num_bytes and self._give_bytes(None):
            pass

    def rest(self, request: DurableRequest) -> None:
        """Note that a request needs the engine no longer: it has ended, or its client has left."""
        if request.is_known and request.rested_at is None:
            request.rested_at = self._clock()
            self._resting[request.number] = request
            self._resting_of.setdefault(request.owner, {})[request.number] = request
            self.writer.append(Rested(request.number))

    def wake(self, request: DurableRequest) -> None:
        """Note that a request needs the engine again."""
        request.rested_at = None
        self._leave_rest(request)

    def forget(self, request: DurableRequest) -> None:
        """Drop a request and everything that it has emitted."""
        if not request.is_known:
            return
        request.is_known = False
        del self._requests[request.number]
        del self._by_name[request.owner, request.request_id]
        self._leave_rest(request)
        self._count(request, -1, -request.num_bytes)
        self.writer.append(Forgotten(request.number))

    def tidy(self) -> None:
        """Forget what has rested for too long; write the file anew if that is due."""
        before = self._clock() - self._limits.seconds
        for request in list(self._resting.values()):
            assert request.rested_at is not None
            if request.rested_at > before:
                break
            self.forget(request)
        is_long = self.writer.num_bytes > 2 * self.num_bytes + REWRITE_BYTES
        if self.writer.may_retry() or (is_long and self.writer.is_whole):
            self.writer.rewrite(self.snapshot())

    # the file

    def snapshot(self) -> Iterable[Record]:
        """Return the records of a file with nothing superfluous.

        The state is copied now. The records are made when they are read, in the writer's thread.
        """
        copies: list[tuple[Began, list[Answer], bool]] = []
        for request in self._requests.values():
            answers = [answer.copy() for answer in request.answers]
            copies.append((request.began, answers, request.rested_at is not None))
        return _records(self._identity, copies)

    def load(self, payloads: Iterable[bytes]) -> int:
        """Restore the requests of a file; return the number of payloads that say nothing.

        Before the writer is started. Requests of another model are dropped.
        """
        answers: dict[int, tuple[DurableRequest, Answer]] = {}
        num_useless, is_ours, most_answers = 0, True, _KEPT_ANSWERS
        for payload in payloads:
            record = decode(payload)
            if isinstance(record, Model):
                is_ours = record.identity == self._identity
                if not is_ours:
                    log.warning("the journal is of another model; its requests are dropped")
            elif record is None or not is_ours or not self._restore(record, answers):
                num_useless += 1
            self._shrink_loaded(2)  # a request may still be forgotten further behind
            if len(answers) > most_answers:
                known = {number: each for number, each in answers.items() if each[0].is_known}
                answers, most_answers = known, 2 * len(known) + _KEPT_ANSWERS
        self._shrink_loaded(1)
        return num_useless

    def _shrink_loaded(self, most: int) -> None:
        """Forget requests until those that are there take at most so many times the bounds."""
        limits = self._limits
        while self._requests and (
            self.num_bytes > most * limits.num_bytes or len(self) > most * limits.num_requests
        ):
            resting, every = self._resting.values(), self._requests.values()
            self.forget(next(iter(resting or every)))

    def _restore(self, record: Record, answers: dict[int, tuple[DurableRequest, Answer]]) -> bool:
        """Follow one record; return False if it refers to nothing."""
        match record:
            case Began():
                before = self.find(record.owner, record.request_id)
                if before is not None:
                    self.forget(before)
                if record.number in self._requests:
                    return False
                request = _new(record)
                self._insert(request)
                self._next_number = max(
                    self._next_number, record.number + 1, record.first + record.num_answers
                )
                answers.update({each.number: (request, each) for each in request.answers})
                return True
            case Emitted():
                for event in record.events:
                    if event.number in answers:
                        request, answer = answers[event.number]
                        self._grow(request, answer.add(event) if request.is_known else 0)
                        self.wake(request)
                return True
            case Rested() | Forgotten():
                found = self._requests.get(record.number)
                if found is None:
                    return False
                if isinstance(record, Forgotten):
                    self.forget(found)
                else:
                    self.rest(found)
                return True
        return False

    # bounds

    def _insert(self, request: DurableRequest) -> None:
        self._requests[request.number] = request
        self._by_name[request.owner, request.request_id] = request
        self._count(request, 1, request.num_bytes)

    def _grow(self, request: DurableRequest, num_bytes: int) -> None:
        request.num_bytes += num_bytes
        self._count(request, 0, num_bytes)

    def _count(self, request: DurableRequest, num_requests: int, num_bytes: int) -> None:
        """Count what a request takes more, for all keys and for its own."""
        owner = request.owner
        self.num_bytes += num_bytes
        self._bytes_of[owner] += num_bytes
        self._num_of[owner] += num_requests
        if not self._num_of[owner]:
            del self._num_of[owner], self._bytes_of[owner]

    def _leave_rest(self, request: DurableRequest) -> None:
        """List a request no longer as one that rests."""
        if self._resting.pop(request.number, None) is not None:
            resting = self._resting_of[request.owner]
            del resting[request.number]
            if not resting:
                del self._resting_of[request.owner]

    def _make_room(self, owner: str, num_bytes: int) -> bool:
        """Make room for a request of a key; return whether there is."""
        limits = self._limits
        while True:
            if self.num_bytes + num_bytes > limits.num_bytes:
                has_given = self._give_bytes(owner, num_bytes)
            elif len(self._requests) >= limits.num_requests:
                has_given = self._give(self._num_of, owner, 1)
            else:
                return True
            if not has_given:
                return False

    def _give_bytes(self, owner: str | None, num_bytes: int = 0) -> bool:
        return self._give(self._bytes_of, owner, num_bytes, drops_open=True)

    def _give(
        self, amounts: Mapping[str, int], owner: str | None, more: int, *, drops_open: bool = False
    ) -> bool:
        """Forget what rests for the longest, of the key with the most that can give something.

        No key gives anything for one that would have more then. With `drops_open` a key of which
        nothing rests gives the largest request that does not.
        """
        own = 0 if owner is None else amounts.get(owner, 0) + more
        for name, amount in sorted(amounts.items(), key=lambda each: -each[1]):
            if name != owner and amount < own:
                continue
            if name in self._resting_of:
                self.forget(next(iter(self._resting_of[name].values())))
                return True
            if drops_open and name != owner:
                of_key = (each for each in self._requests.values() if each.owner == name)
                self._drop(max(of_key, key=lambda each: each.num_bytes))
                return True
        return False

    def _drop(self, request: DurableRequest) -> None:
        """Forget a request that is too large."""
        self.num_dropped += request.is_known
        self.forget(request)


def _records(identity: str, copies: list[tuple[Began, list[Answer], bool]]) -> Iterator[Record]:
    yield Model(identity)
    for began, answers, rests in copies:
        yield began
        for answer in answers:
            events = tuple(answer.recorded())
            if events:
                yield Emitted(events)
        if rests:
            yield Rested(began.number)


def _new(began: Began) -> DurableRequest:
    answers = [Answer(began.first + index) for index in range(began.num_answers)]
    num_bytes = REQUEST_BYTES + len(began.head) + 64 * len(answers)
    return DurableRequest(
        began.number, began.owner, began.request_id, began.head, answers, num_bytes
    )
