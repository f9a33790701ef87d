"""One engine of a set, with the requests that it has, and those that end it.

The keeper of all requests chooses which engine gets which. What an engine then does with them, and
what becomes of them when it ends, is its member's part.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from octavo.client.commands import COMMAND_SECONDS
from octavo.client.engine import Engine
from octavo.client.journal.journal import Assignment, Entry, Journal
from octavo.client.journal.quarantine import Quarantine
from octavo.client.vitals import EngineVitals
from octavo.core.request import TokenEvent
from octavo.core.snapshot import EngineSnapshot
from octavo.routing import Candidate, KnownPrefixes
from octavo.wire.codec import in_batches
from octavo.wire.commands import Command, Reply
from octavo.wire.message_types import (
    AbortRequests,
    AddRequests,
    WireError,
    WireEvent,
    WireRequest,
)

NUMBER = re.compile(r"[0-9]{1,19}")
SomeEngine = TypeVar("SomeEngine", bound=Engine)


class Keeper(Protocol):
    """The keeper of all requests; its methods may call the member back."""

    def record(self, event: TokenEvent) -> None:
        """Take an event that is to be delivered."""

    def deliver(self, merge: bool) -> None:
        """Deliver recorded events to the callers, merged if they came in several frames."""

    def refuse(self, entry: Entry, error: WireError) -> None:
        """End a request that cannot be sent."""

    def submit_waiting(self) -> None:
        """Give requests that no engine has to engines that may have them."""

    def on_ready(self, number: int, epoch: int) -> None:
        """Note that an engine has become ready."""

    def on_end(self) -> None:
        """Note that an engine has ended."""

    def on_give_up(self, message: str) -> None:
        """Note that an engine will not run again."""


class Member(Generic[SomeEngine]):
    """Implements `octavo.client.engine.EngineUser` for one engine of a set."""

    def __init__(
        self,
        index: int,
        engine: SomeEngine,
        keeper: Keeper,
        journal: Journal,
        clock: Callable[[], float],
        *,
        has_others: bool,
        number: int,  # by which it is named
    ) -> None:
        self.index = index
        self._number = number
        self.engine = engine
        self.requests = Assignment(journal, number)
        self.quarantine = Quarantine()
        self._keeper = keeper
        self._clock = clock
        self._has_others = has_others  # so that an engine is chosen for each request
        self._unsent: list[WireRequest] = []
        self._known: KnownPrefixes | None = None  # made when the engine's size is known
        engine.use(self)

    # as others see it

    @property
    def vitals(self) -> EngineVitals:
        """The counts and times of the engine's life, which change as it lives."""
        return self.engine.vitals

    def snapshot(self) -> EngineSnapshot:
        """Return the engine's newest statistics."""
        # Requests that the engine has not read yet, in the middle of a step, wait too.
        load = self.engine.load
        num_waiting = max(0, len(self.requests) - load.num_running)
        return replace(self.engine.totals, load=load._replace(num_waiting=num_waiting))

    def command(self, command: Command, seconds: float = COMMAND_SECONDS) -> asyncio.Future[Reply]:
        """Send a command to this engine alone."""
        return self.engine.command(command, seconds)

    def request_id(self, name: str) -> str | None:
        """Return the id of the request that has this name in the engine."""
        entry = self.requests.find(int(name)) if NUMBER.fullmatch(name) else None
        return None if entry is None else entry.name

    def is_well(self) -> bool:
        """Return whether the engine is ready and alive."""
        return self.engine.is_well()

    @property
    def is_ready(self) -> bool:
        """True if the engine can be given requests."""
        return self.engine.is_ready

    @property
    def is_closed(self) -> bool:
        """True if the engine will not run again."""
        return self.engine.is_closed

    @property
    def is_open(self) -> bool:
        """True if the engine may be given requests; not while one of them runs alone."""
        return self.engine.is_ready and not self.quarantine.is_active

    @property
    def prefixes(self) -> KnownPrefixes:
        """The prefixes that the engine was given."""
        if self._known is None:
            self._known = KnownPrefixes(self.engine.facts.kv_tokens)
        return self._known

    def candidate(self, entry: Entry) -> Candidate:
        """Return what the choice of an engine for a request needs of this one."""
        num_cached = 0
        if entry.request.reads_cache:
            num_cached = self.prefixes.num_tokens(entry.prefixes.extend(entry.emitted))
        return Candidate(
            self.index,
            num_cached,
            self.requests.num_waiting_tokens,
            len(self.requests),
            self.engine.facts.max_num_seqs,
            len(self.prefixes),
        )

    def _note_prefix(self, entry: Entry) -> int:
        """Note what the engine will have of a request; return how many tokens it had not.

        Only the choice of an engine needs that, so where there is one it costs nothing.
        """
        if not self._has_others:
            return 0
        keys = entry.prefixes.extend(entry.emitted)
        num_tokens = len(entry.request.prompt) + len(entry.emitted)
        num_new = max(1, num_tokens - self.prefixes.num_tokens(keys))
        self.prefixes.note(keys)
        return num_new

    # requests

    def accept(self, entry: Entry) -> None:
        """Take a request over; `send` then sends it."""
        if not len(self.requests):
            self.engine.note_work()
        entry.num_to_compute = self._note_prefix(entry)
        try:
            self._unsent.append(self.requests.submit(entry, self._clock()))
        except WireError as error:
            self._keeper.refuse(entry, error)

    def send(self) -> None:
        """Send the requests that were taken over."""
        unsent, self._unsent = self._unsent, []
        for batch in in_batches(unsent):
            self._add(batch)
        self.engine.flush()

    def _add(self, message: AddRequests) -> None:
        try:
            self.engine.write(message)
        except WireError as error:
            if len(message.requests) > 1:  # one of them is too large: find it
                for wire in message.requests:
                    self._add(AddRequests((wire,)))
                return
            entry = self.requests.find(message.requests[0].number)
            assert entry is not None
            self._keeper.refuse(entry, error)

    def abort(self, entry: Entry) -> None:
        """Let the engine end a request, whose last event then comes from it."""
        assert entry.number is not None
        self.engine.write(AbortRequests((entry.number,)))

    def start_next(self) -> None:
        """Submit the next suspect, which then runs alone here, and what waits to where it may be.

        The engine is empty.
        """
        if not self.engine.is_ready:
            return
        suspect = self.quarantine.isolate()
        if suspect is not None:
            self.accept(suspect)
        self._keeper.submit_waiting()

    # calls of the engine; see `octavo.client.engine.EngineUser`

    def has_requests(self) -> bool:
        return len(self.requests) > 0

    def on_ready(self, epoch: int) -> None:
        self._keeper.on_ready(self._number, epoch)
        self.start_next()

    def on_events(self, events: Sequence[WireEvent]) -> None:
        now, is_isolation_over = self._clock(), False
        for wire in events:
            entry = self.requests.find(wire.number)
            if entry is None:  # a late event of a request that has ended or was withdrawn
                continue
            event = self.requests.advance(entry, wire)
            self._keeper.record(event)
            if event.tokens:
                self.engine.note_progress()
            if event.finish_reason is not None:
                self._note_prefix(entry)
            if (event.tokens or event.finish_reason) and self.quarantine.clear(entry):
                is_isolation_over = True
                if event.finish_reason is None and not entry.is_abort_requested:
                    # Withdraw it, to submit it again in its order among the others.
                    self.engine.write(AbortRequests((wire.number,)))
                    self.requests.withdraw(entry)
                    entry.lose(now)
        if is_isolation_over:
            self.start_next()

    def deliver(self, merge: bool) -> None:
        self._keeper.deliver(merge)

    def on_end(self, last_step: tuple[int, ...], was_killed: bool, reason: str) -> bool:
        numbers = dict.fromkeys(last_step)  # each once, in however many steps in flight it is
        found = map(self.requests.find, numbers)
        suspects = [entry for entry in found if entry is not None]
        culprit = self.quarantine.suspect(suspects, was_killed)
        self._end_lost(self.requests.lose(self._clock()), culprit, reason)
        if self._known is not None:  # an engine that was never ready has none
            self._known.clear()
        self._keeper.on_end()
        return culprit is not None

    def _end_lost(self, lost: Iterable[Entry], culprit: Entry | None, reason: str) -> None:
        """End those of the lost requests that no engine continues."""
        for entry in lost:
            if entry is culprit:
                event = entry.last_event("error", _crash_message(reason))
            elif entry.is_abort_requested:
                event = entry.last_event("abort")
            else:
                continue
            self._keeper.record(event)
            self.requests.end(entry)
            self.quarantine.forget(entry)

    def on_give_up(self, message: str) -> None:
        self.quarantine.release()
        self._keeper.on_give_up(message)


def _crash_message(reason: str) -> str:
    return (
        "this request ended the engine each time it was tried, the last time while it ran alone: "
        f"{reason}. No other request was harmed; do not send it again"
    )
