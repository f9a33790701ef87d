"""The client that keeps all requests above its engines, so that none ends with an engine.

Every open request is in the journal. When an engine has ended, its requests are submitted to
another one that is ready, or to the next one that becomes so, as prompt + emitted tokens, and those
in the fatal step become suspect (`Quarantine`). One engine is a set of one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Generic

from octavo.client.client import Deliver, Died
from octavo.client.commands import COMMAND_SECONDS, joined
from octavo.client.errors import EngineDeadError
from octavo.client.exit_reason import name_of
from octavo.client.journal.journal import Entry, Journal
from octavo.client.journal.member import Member, SomeEngine
from octavo.core.request import FAILURES, Abort, Request, TokenEvent
from octavo.core.snapshot import EngineSnapshot, together
from octavo.routing import choose
from octavo.wire.commands import Command, Reply, ResetPrefixCache
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import WireError

log = logging.getLogger(__name__)


class JournalClient(Generic[SomeEngine]):
    """Implements `octavo.client.client.EngineClient` over engines that have been started."""

    def __init__(
        self,
        engines: Sequence[SomeEngine],
        clock: Callable[[], float] = time.monotonic,
        first: int = 0,  # the first engine's number among those of all servers
        model: str = "",  # for the log, where there are engines of several models
    ) -> None:
        assert engines, "a set has one engine at least"
        self._model = model
        self._clock = clock
        self._journal = Journal()
        self.members: Sequence[Member[SomeEngine]] = tuple(
            Member(
                *(index, engine, self, self._journal, clock),
                has_others=len(engines) > 1,
                number=first + index,
            )
            for index, engine in enumerate(engines)
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliver: Deliver = lambda events: None
        self._died: Died = lambda error: None
        self._changed: Callable[[], None] = lambda: None
        self._undelivered: list[TokenEvent] = []  # recorded in the journal already

    @property
    def engines(self) -> list[SomeEngine]:
        """The engines, in the order of their numbers."""
        return [member.engine for member in self.members]

    @property
    def facts(self) -> EngineFacts:
        return self.members[0].engine.facts

    def attach(self, deliver: Deliver, died: Died) -> None:
        self._deliver, self._died = deliver, died
        self._loop = asyncio.get_running_loop()
        for engine in self.engines:
            engine.attach()

    def watch(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    def is_well(self) -> bool:
        return any(engine.is_well() for engine in self.engines)

    @property
    def is_sleeping(self) -> bool:
        engines = [engine for engine in self.engines if not engine.is_closed]
        return bool(engines) and all(engine.is_sleeping for engine in engines)

    def sleep(self) -> None:
        for engine in self.engines:
            engine.sleep()

    def wake_up(self) -> None:
        for engine in self.engines:
            engine.wake_up()

    def restart(self, index: int) -> None:
        self.members[index].engine.restart()

    def command(self, command: Command, seconds: float = COMMAND_SECONDS) -> asyncio.Future[Reply]:
        if isinstance(command, ResetPrefixCache):
            for member in self.members:
                member.prefixes.clear()
        return joined([engine.command(command, seconds) for engine in self.engines])

    def snapshot(self) -> EngineSnapshot:
        snapshots = [member.snapshot() for member in self.members]
        # One that is away says what it was before, and gets the pause when it is ready.
        pairs = zip(self.members, snapshots, strict=True)
        ready = [each for member, each in pairs if member.is_ready] or snapshots
        whole = together(snapshots, is_paused=all(each.is_paused for each in ready))
        num_waiting = max(0, len(self._journal) - whole.load.num_running)
        return whole.with_waiting(num_waiting)

    # requests

    def send(self, events: Sequence[Request | Abort]) -> None:
        if self._is_over():
            if any(isinstance(event, Request) for event in events):
                raise EngineDeadError(self.members[-1].engine.closed_reason)
            return
        opened: list[Entry] = []
        for event in events:
            if isinstance(event, Request):
                opened.append(self._journal.open(event))
                continue
            self._assign(opened)
            opened = []
            self._abort(event.request_id)
        self._assign(opened)
        for member in self.members:
            member.send()

    def _is_over(self) -> bool:
        """Return whether there will be no engine any more."""
        return all(engine.is_closed for engine in self.engines)

    def _assign(self, entries: Iterable[Entry]) -> None:
        """Give requests to engines that are ready; those for which there is none wait."""
        for entry in entries:
            member = self._choose(entry)
            if member is None:
                entry.timeline.wait(self._clock())
            else:
                member.accept(entry)

    def _choose(self, entry: Entry) -> Member[SomeEngine] | None:
        """Return the engine that gets a request; a fork goes where its parent is."""
        found = [member for member in self.members if member.is_open]
        if not found:
            return None
        parent = self._journal.parent_of(entry)
        if parent is not None:
            for member in found:
                if member.requests is parent.holder:
                    return member
        well = [member for member in found if member.is_well()] or found
        if len(well) == 1:
            return well[0]
        num_tokens = len(entry.request.prompt) + len(entry.emitted)
        return self.members[choose(num_tokens, [each.candidate(entry) for each in well])]

    def submit_waiting(self) -> None:
        """Give requests that no engine has to engines that may have them."""
        waiting = [entry for entry in self._journal if entry.holder is None]
        for member in self.members:
            if member.quarantine.is_active:
                waiting = [entry for entry in waiting if not member.quarantine.has(entry)]
        self._assign(waiting)
        for member in self.members:
            member.send()

    def refuse(self, entry: Entry, error: WireError) -> None:
        """End a request that cannot be sent."""
        self._finish(entry, entry.last_event("refused", str(error)))

    def _abort(self, name: str) -> None:
        entry = self._journal.find(name)
        if entry is None or entry.is_abort_requested:
            return
        entry.is_abort_requested = True
        for member in self.members:
            if member.requests is entry.holder:
                member.send()  # the request itself may be unsent
                if entry.holder is not None:  # else it could not be sent, and has ended
                    member.abort(entry)
                return
        self._finish(entry, entry.last_event("abort"))

    def _finish(self, entry: Entry, event: TokenEvent) -> None:
        """End a request that no engine has; deliver its last event after the current call."""
        self._journal.close(entry)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(self._deliver, [event])
        for member in self.members:
            if member.quarantine.forget(entry):
                member.start_next()

    # calls of the members; see `octavo.client.journal.member.Keeper`

    def record(self, event: TokenEvent) -> None:
        """Take an event that is to be delivered."""
        self._undelivered.append(event)

    def deliver(self, merge: bool) -> None:
        """Deliver recorded events to the callers, merged if they came in several frames."""
        events, self._undelivered = self._undelivered, []
        if events:
            self._deliver(coalesce(events) if merge else events)

    def on_ready(self, number: int, epoch: int) -> None:
        """Note that an engine has become ready."""
        if epoch > 1:
            log.warning(
                "engine %s is ready; requests that continue: %d",
                name_of(number, epoch, self._model),
                sum(entry.holder is None for entry in self._journal),
            )
        self._changed()

    def on_end(self) -> None:
        """Let the other engines continue what one has lost."""
        self.submit_waiting()
        self._changed()

    def on_give_up(self, message: str) -> None:
        """Fail all callers if no engine is left; else let the others have what this one had."""
        self._changed()
        if self._is_over():
            self._died(EngineDeadError(message))
        else:
            self.submit_waiting()


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
