"""The client that keeps all requests above the engine, so that none ends with an engine.

Every open request is in the journal. When an engine has ended, its requests are submitted to the
next one as prompt + emitted tokens, and those in the fatal step become suspect (`Quarantine`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from octavo.client.client import Deliver, Died, EngineDeadError
from octavo.client.commands import COMMAND_SECONDS
from octavo.client.engine import Engine
from octavo.client.journal.journal import Entry, Journal
from octavo.client.journal.quarantine import Quarantine
from octavo.client.vitals import EngineVitals
from octavo.core.request import FAILURES, Abort, Request, TokenEvent
from octavo.core.snapshot import EngineSnapshot
from octavo.wire.codec import in_batches
from octavo.wire.commands import Command, Reply
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import AbortRequests, AddRequests, WireError, WireEvent

log = logging.getLogger(__name__)


SomeEngine = TypeVar("SomeEngine", bound=Engine)


class JournalClient(Generic[SomeEngine]):
    """Implements `octavo.client.client.EngineClient` over an engine that has been started."""

    def __init__(self, engine: SomeEngine, clock: Callable[[], float] = time.monotonic) -> None:
        self.engine = engine
        self._clock = clock
        self._journal = Journal()
        self._quarantine = Quarantine()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliver: Deliver = lambda events: None
        self._died: Died = lambda error: None
        self._undelivered: list[TokenEvent] = []  # recorded in the journal already
        engine.use(self)

    @property
    def facts(self) -> EngineFacts:
        return self.engine.facts

    @property
    def vitals(self) -> EngineVitals:
        return self.engine.vitals

    def attach(self, deliver: Deliver, died: Died) -> None:
        self._deliver, self._died = deliver, died
        self._loop = asyncio.get_running_loop()
        self.engine.attach()

    def close(self) -> None:
        self.engine.close()

    def is_well(self) -> bool:
        return self.engine.is_well()

    @property
    def is_sleeping(self) -> bool:
        return self.engine.is_sleeping

    def sleep(self) -> None:
        self.engine.sleep()

    def wake_up(self) -> None:
        self.engine.wake_up()

    def command(self, command: Command, seconds: float = COMMAND_SECONDS) -> asyncio.Future[Reply]:
        return self.engine.command(command, seconds)

    def snapshot(self) -> EngineSnapshot:
        # Requests that the engine has not read yet, in the middle of a step, wait too.
        load = self.engine.load
        num_waiting = max(0, len(self._journal) - load.num_running)
        return replace(self.engine.totals, load=load._replace(num_waiting=num_waiting))

    # requests

    def send(self, events: Sequence[Request | Abort]) -> None:
        if self.engine.is_closed:
            if any(isinstance(event, Request) for event in events):
                raise EngineDeadError(self.engine.closed_reason)
            return
        opened: list[Entry] = []
        for event in events:
            if isinstance(event, Request):
                opened.append(self._journal.open(event))
                continue
            self._submit_now_or_later(opened)
            opened = []
            self._abort(event.request_id)
        self._submit_now_or_later(opened)
        self.engine.flush()

    def _submit_now_or_later(self, entries: Iterable[Entry]) -> None:
        if self.engine.is_ready and not self._quarantine.is_active:
            self._submit(entries)
            return
        now = self._clock()
        for entry in entries:
            entry.timeline.wait(now)

    def _submit_waiting(self) -> None:
        """Submit the next suspect alone or, without one, all that wait; the engine is empty."""
        if not self.engine.is_ready:
            return
        suspect = self._quarantine.isolate()
        waiting = [entry for entry in self._journal if entry.number is None]
        self._submit([suspect] if suspect is not None else waiting)

    def _submit(self, entries: Iterable[Entry]) -> None:
        now, wires = self._clock(), []
        if not self._journal.num_submitted:
            self.engine.note_work()
        for entry in entries:
            try:
                wires.append(self._journal.submit(entry, now))
            except WireError as error:
                self._refuse(entry, error)
        for batch in in_batches(wires):
            self._add(batch)

    def _add(self, message: AddRequests) -> None:
        try:
            self.engine.write(message)
        except WireError as error:
            if len(message.requests) > 1:  # one of them is too large: find it
                for wire in message.requests:
                    self._add(AddRequests((wire,)))
                return
            entry = self._journal.find_number(message.requests[0].number)
            assert entry is not None
            self._refuse(entry, error)

    def _refuse(self, entry: Entry, error: WireError) -> None:
        self._finish(entry, entry.last_event("refused", str(error)))

    def _abort(self, name: str) -> None:
        entry = self._journal.find(name)
        if entry is None or entry.is_abort_requested:
            return
        entry.is_abort_requested = True
        if entry.number is None:
            self._finish(entry, entry.last_event("abort"))
        else:
            self.engine.write(AbortRequests((entry.number,)))

    def _finish(self, entry: Entry, event: TokenEvent) -> None:
        """End a request that no engine has; deliver its last event after the current call."""
        self._journal.close(entry)
        if self._quarantine.forget(entry):
            self._submit_waiting()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(self._deliver, [event])

    # calls of the engine; see `octavo.client.engine.EngineUser`

    def has_requests(self) -> bool:
        return self._journal.num_submitted > 0

    def on_ready(self, epoch: int) -> None:
        if epoch > 1:
            log.warning("engine %d is ready; requests that continue: %d", epoch, len(self._journal))
        self._submit_waiting()

    def on_events(self, events: Sequence[WireEvent]) -> None:
        now, is_isolation_over = self._clock(), False
        for wire in events:
            entry = self._journal.find_number(wire.number)
            if entry is None:  # a late event of a request that has ended or was withdrawn
                continue
            event = self._journal.advance(entry, wire)
            self._undelivered.append(event)
            if event.tokens:
                self.engine.note_progress()
            if (event.tokens or event.finish_reason) and self._quarantine.clear(entry):
                is_isolation_over = True
                if event.finish_reason is None and not entry.is_abort_requested:
                    # Withdraw it, to submit it again in its order among the others.
                    self.engine.write(AbortRequests((wire.number,)))
                    self._journal.withdraw(entry)
                    entry.lose(now)
        if is_isolation_over:
            self._submit_waiting()

    def deliver(self, merge: bool) -> None:
        events, self._undelivered = self._undelivered, []
        if events:
            self._deliver(coalesce(events) if merge else events)

    def on_end(self, last_step: tuple[int, ...], was_killed: bool, reason: str) -> bool:
        numbers = dict.fromkeys(last_step)  # each once, in however many steps in flight it is
        found = map(self._journal.find_number, numbers)
        suspects = [entry for entry in found if entry is not None]
        culprit = self._quarantine.suspect(suspects, was_killed)
        self._journal.lose_engine(self._clock())
        for entry in self._journal:
            if entry is culprit:
                event = entry.last_event("error", _crash_message(reason))
            elif entry.is_abort_requested:
                event = entry.last_event("abort")
            else:
                continue
            self._undelivered.append(event)
            self._journal.close(entry)
            self._quarantine.forget(entry)
        return culprit is not None

    def on_give_up(self, message: str) -> None:
        self._died(EngineDeadError(message))


def _crash_message(reason: str) -> str:
    return (
        "this request ended the engine each time it was tried, the last time while it ran alone: "
        f"{reason}. No other request was harmed; do not send it again"
    )


def coalesce(events: Sequence[TokenEvent]) -> list[TokenEvent]:
    """Merge events of the same request, and keep each request's order.

    A front end that has fallen behind then makes one text, one chunk and one write of them.
    """
    merged: list[TokenEvent] = []
    last: dict[str, int] = {}  # request id → index of its last event
    for event in events:
        index = last.get(event.request_id)
        if index is not None and _can_append(event) and _has_only_tokens(before := merged[index]):
            tokens = before.tokens + event.tokens
            merged[index] = event._replace(position=before.position, tokens=tokens)
            continue
        last[event.request_id] = len(merged)
        merged.append(event)
    return merged


def _can_append(event: TokenEvent) -> bool:
    """Return whether earlier tokens may join the event; a failure's tokens are not read."""
    return event.payload is None and event.finish_reason not in FAILURES


def _has_only_tokens(event: TokenEvent) -> bool:
    return event.finish_reason is None and event.payload is None and event.stats is None
