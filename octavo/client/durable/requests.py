"""All durable requests, in memory; the journal's file is a copy of them.

A request is kept until `seconds` after it needed the engine last. If those kept grow beyond a
bound, the key that has the most loses the request that has rested for the longest.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from octavo.client.durable.answer import Answer
from octavo.client.durable.kept import Kept
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


class DurableRequests(Kept[DurableRequest]):
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
        self._limits = limits = limits or Limits()
        super().__init__(limits.num_bytes, limits.num_requests)
        self._clock = clock
        self._requests: dict[int, DurableRequest] = {}
        self._resting: dict[int, DurableRequest] = {}  # the one that rests for the longest first
        self._next_number = 0  # of requests and of answers
        self.num_dropped = 0  # requests that were too large to be kept

    # what happens to a request

    def begin(
        self, owner: str, request_id: str, head: bytes, num_answers: int
    ) -> DurableRequest | None:
        """Keep a new request; return None if there is no room for it."""
        assert self.find(owner, request_id) is None, "an owner's request ids are unique"
        number, self._next_number = self._next_number, self._next_number + 1 + num_answers
        request = _new(Began(number, owner, request_id, number + 1, num_answers, head))
        is_large = request.num_bytes > MAX_REQUEST_BYTES
        if is_large or not self._make_room(owner, request.num_bytes, 1):
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
                self._drop_large(request)
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
                self._drop_large(request)
        self._make_room(None)

    def rest(self, request: DurableRequest) -> None:
        """Note that a request needs the engine no longer: it has ended, or its client has left."""
        if request.is_known and request.rested_at is None:
            request.rested_at = self._clock()
            self._resting[request.number] = request
            self._spare_one(request)
            self.writer.append(Rested(request.number))

    def wake(self, request: DurableRequest) -> None:
        """Note that a request needs the engine again."""
        request.rested_at = None
        self._resting.pop(request.number, None)
        self._need(request)

    def forget(self, request: DurableRequest) -> None:
        """Drop a request and everything that it has emitted."""
        if not request.is_known:
            return
        request.is_known = False
        del self._requests[request.number]
        self._resting.pop(request.number, None)
        self._remove(request, request.request_id)
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
                        if request.is_known:
                            self._grow(request, answer.add(event))
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
        self._add(request, request.request_id)

    def _drop(self, name: str, owner: str | None) -> bool:
        """Forget the largest request of a key, unless it is for another one of the same key."""
        if name != owner:
            of_key = (each for each in self._requests.values() if each.owner == name)
            self._drop_large(max(of_key, key=lambda each: each.num_bytes))
        return name != owner

    def _drop_large(self, request: DurableRequest) -> None:
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
