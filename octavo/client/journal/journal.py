"""The journal: everything that is needed to resume any open request in another engine.

For each request that is its prompt, its parameters, its seed, the tokens emitted so far, and the
state of its sampler behind them if it has one. The KV cache of an engine is only a cache; the
journal is the source of truth. Which requests an engine has, by their numbers, is its `Assignment`.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from octavo.client.journal.prefixes import Prefixes
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
    sampler_state: float | None = None  # behind `emitted`
    holder: Assignment | None = None  # of the engine that has the request
    number: int | None = None  # in that engine; None: no engine has the request
    was_submitted: bool = False  # to some engine: a full queue must not reject it any more
    is_abort_requested: bool = False
    crash_points: int = 0  # for crashes while it was in a step; see `Quarantine`
    num_tokens_at_crash: int = 0  # tokens emitted when crash_points last grew
    timeline: Timeline = field(default_factory=Timeline)
    num_to_compute: int = 0  # tokens that its engine has to compute before the first it emits
    prefixes: Prefixes = field(init=False)

    def __post_init__(self) -> None:
        self.prefixes = Prefixes(self.request)

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
        self._next_number = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries.values()))

    def open(self, request: Request) -> Entry:
        """Add a request, which may already have tokens that it emitted elsewhere."""
        assert request.request_id not in self._entries, "request ids are unique"
        entry = Entry(
            request, request.emitted[:], request.sampler_state, was_submitted=request.resumed
        )
        self._entries[request.request_id] = entry
        return entry

    def find(self, name: str) -> Entry | None:
        """Return the open entry of this name, if any."""
        return self._entries.get(name)

    def parent_of(self, entry: Entry) -> Entry | None:
        """Return the open request of which another is a fork, if any."""
        parent = entry.request.parent_id
        return None if parent is None else self._entries.get(parent)

    def close(self, entry: Entry) -> None:
        """Remove a request that has ended."""
        del self._entries[entry.name]
        if entry.holder is not None:
            entry.holder.withdraw(entry)

    def take_number(self) -> int:
        """Return a number that no submission of a request has had, to whichever engine."""
        number, self._next_number = self._next_number, self._next_number + 1
        return number


class Assignment:
    """The requests that one engine has, by their numbers."""

    def __init__(self, journal: Journal, number: int) -> None:
        self._journal = journal
        self._number = number  # of the engine
        self._by_number: dict[int, Entry] = {}
        self.num_waiting_tokens = 0  # to be computed before the requests emit their first

    def __len__(self) -> int:
        return len(self._by_number)

    def find(self, number: int) -> Entry | None:
        """Return the entry that has this number in the engine, if any."""
        return self._by_number.get(number)

    def withdraw(self, entry: Entry) -> None:
        """Ignore what the engine still sends about a request."""
        assert entry.number is not None, "the engine does not have this request"
        self._begin(entry)
        del self._by_number[entry.number]
        entry.holder = entry.number = None

    def submit(self, entry: Entry, now: float) -> WireRequest:
        """Return the message that resumes a request; raise WireError if it cannot be sent.

        Every submission has a new number, so that late events of an earlier one match no entry.
        """
        assert entry.holder is None, "an engine already has this request"
        parent = self._journal.parent_of(entry)
        is_here = parent is not None and parent.holder is self
        resumed = replace(
            entry.request,
            emitted=entry.emitted,
            resumed=entry.was_submitted,
            sampler_state=entry.sampler_state,
        )
        number = self._journal.take_number()
        wire = request_to_wire(resumed, number, parent.number if parent and is_here else None)
        entry.holder, entry.number, entry.was_submitted = self, number, True
        self._by_number[number] = entry
        self.num_waiting_tokens += entry.num_to_compute
        entry.timeline.submit(now, len(entry.emitted), self._number)
        return wire

    def advance(self, entry: Entry, wire: WireEvent) -> TokenEvent:
        """Record an event of a request; return it as the front end's event."""
        if wire.position != len(entry.emitted):
            raise JournalError(
                f"the engine sent token {wire.position} of a request that has emitted "
                f"{len(entry.emitted)} tokens"
            )
        event = event_from_wire(wire, entry.request.request_id)
        if entry.num_to_compute:
            self._begin(entry)
        entry.emitted.extend(wire.tokens)
        if wire.sampler_state is not None:
            entry.sampler_state = wire.sampler_state
        if event.finish_reason is not None:
            self._journal.close(entry)
        if event.stats is not None:
            stats = entry.timeline.whole(event.stats, len(entry.emitted))
            event = event._replace(stats=stats)
        return event

    def end(self, entry: Entry) -> None:
        """Remove a request that no engine has, and none continues."""
        self._journal.close(entry)

    def _begin(self, entry: Entry) -> None:
        """Note that a request does not wait for its first token here any more."""
        self.num_waiting_tokens -= entry.num_to_compute
        entry.num_to_compute = 0

    def lose(self, now: float) -> list[Entry]:
        """Return all entries, which the engine has no more, since it has ended."""
        lost = list(self._by_number.values())
        for entry in lost:
            self.withdraw(entry)
            entry.lose(now)
        return lost
