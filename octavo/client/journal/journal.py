"""The journal: everything that is needed to resume any open request in another engine.

For each request that is its prompt, its parameters, its seed and the tokens emitted so far. The KV
cache of an engine is only a cache; the journal is the source of truth.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from octavo.client.journal.timeline import Timeline
from octavo.core.request import FinishReason, Request, TokenEvent
from octavo.wire.codec import event_from_wire, request_to_wire
from octavo.wire.message_types import WireError, WireEvent, WireRequest


class JournalError(WireError):
    """An engine sent an event that contradicts its earlier events."""


@dataclass(slots=True, eq=False)
class Entry:
    """An open request, with the tokens that it has emitted."""

    request: Request
    emitted: array[int] = field(default_factory=lambda: array("i"))
    number: int | None = None  # in the current engine; None: it does not have the request
    was_submitted: bool = False  # to some engine: a full queue must not reject it any more
    is_abort_requested: bool = False
    crash_points: int = 0  # for crashes while it was in a step; see `Quarantine`
    num_tokens_at_crash: int = 0  # tokens emitted when crash_points last grew
    timeline: Timeline = field(default_factory=Timeline)

    @property
    def name(self) -> str:
        """The request id that the front end uses."""
        return self.request.request_id

    def lose(self, now: float) -> None:
        """Note that the engine that had the request has it no more."""
        request = self.request
        self.timeline.lose(now, request.arrival, len(request.prompt), len(self.emitted))

    def last_event(self, reason: FinishReason, message: str | None = None) -> TokenEvent:
        """Return a last event that no engine has sent."""
        return TokenEvent(self.name, len(self.emitted), (), reason, message=message)


class Journal:
    """The open requests, from the oldest to the newest."""

    def __init__(self) -> None:
        self._entries: dict[str, Entry] = {}
        self._by_number: dict[int, Entry] = {}
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    @property
    def num_submitted(self) -> int:
        """The number of requests that the current engine has."""
        return len(self._by_number)

    def open(self, request: Request) -> Entry:
        """Add a request, which may already have tokens that it emitted elsewhere."""
        assert request.request_id not in self._entries, "request ids are unique"
        entry = Entry(request, request.emitted[:], was_submitted=request.resumed)
        self._entries[request.request_id] = entry
        return entry

    def find(self, name: str) -> Entry | None:
        """Return the open entry of this name, if any."""
        return self._entries.get(name)

    def find_number(self, number: int) -> Entry | None:
        """Return the entry that has this number in the current engine, if any."""
        return self._by_number.get(number)

    def close(self, entry: Entry) -> None:
        """Remove a request that has ended."""
        del self._entries[entry.name]
        self.withdraw(entry)

    def withdraw(self, entry: Entry) -> None:
        """Ignore what the current engine still sends about a request."""
        if entry.number is not None:
            del self._by_number[entry.number]
            entry.number = None

    def submit(self, entry: Entry, now: float) -> WireRequest:
        """Return the message that resumes a request; raise WireError if it cannot be sent.

        Every submission has a new number, so that late events of an earlier one match no entry.
        """
        assert entry.number is None, "the engine already has this request"
        request = entry.request
        parent = None
        if request.parent_id is not None and (before := self.find(request.parent_id)) is not None:
            parent = before.number
        resumed = replace(request, emitted=entry.emitted, resumed=entry.was_submitted)
        wire = request_to_wire(resumed, self._next_number, parent)
        entry.number, entry.was_submitted = self._next_number, True
        self._by_number[self._next_number] = entry
        self._next_number += 1
        entry.timeline.submit(now, len(entry.emitted))
        return wire

    def advance(self, entry: Entry, wire: WireEvent) -> TokenEvent:
        """Record an event of a request; return it as the front end's event."""
        if wire.position != len(entry.emitted):
            raise JournalError(
                f"the engine sent token {wire.position} of a request that has emitted "
                f"{len(entry.emitted)} tokens"
            )
        event = event_from_wire(wire, entry.request.request_id)
        entry.emitted.extend(wire.tokens)
        if event.finish_reason is not None:
            self.close(entry)
        if event.stats is not None:
            stats = entry.timeline.whole(event.stats, len(entry.emitted))
            event = event._replace(stats=stats)
        return event

    def lose_engine(self, now: float) -> None:
        """Note that the engine has ended, with everything it had."""
        for entry in self._by_number.values():
            entry.number = None
            entry.lose(now)
        self._by_number.clear()
