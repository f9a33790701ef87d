"""The journal: of every open request, all that is needed to begin it again where it was.

That is its prompt, its parameters, its seed and the tokens it has been given. The KV cache of an
engine is only a cache; the truth is here.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from octavo.core.request import FinishReason, Request, TokenEvent
from octavo.core.stats import RESTART
from octavo.wire.codec import event_from_wire, request_to_wire
from octavo.wire.message_types import WireEvent, WireRequest


class JournalError(ValueError):
    """An engine told something that cannot follow what it told before."""


@dataclass(slots=True, eq=False)
class Entry:
    """One request of the core's kind, as far as it has come."""

    request: Request
    emitted: array[int] = field(default_factory=lambda: array("i"))
    number: int | None = None  # under which the present engine has it; None: it does not
    is_promised: bool = False  # some engine has been given it: no full queue turns it away
    is_aborted: bool = False  # its end has been asked for
    strikes: int = 0  # how much speaks for its ending engines: see octavo.client.quarantine
    num_at_strike: int = 0  # tokens it had at the last strike
    first_token_at: float | None = None
    lost_at: float | None = None  # since when it waits for a new engine
    lost_seconds: float = 0.0

    @property
    def name(self) -> str:
        """What the front end calls it."""
        return self.request.request_id

    def last_event(self, reason: FinishReason, message: str | None = None) -> TokenEvent:
        """An end that comes from here and not from an engine."""
        return TokenEvent(self.name, len(self.emitted), (), reason, message=message)


class Journal:
    """All open requests, oldest first."""

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
        """How many the present engine has."""
        return len(self._by_number)

    def open(self, request: Request) -> Entry:
        """Begin an entry; it may bring tokens that it was given elsewhere."""
        assert request.request_id not in self._entries, "the desk keeps ids apart"
        entry = Entry(request, request.emitted[:], is_promised=request.resumed)
        self._entries[request.request_id] = entry
        return entry

    def find(self, name: str) -> Entry | None:
        """The entry of this name, if it is open."""
        return self._entries.get(name)

    def at(self, number: int) -> Entry | None:
        """The entry that the present engine has under this number."""
        return self._by_number.get(number)

    def close(self, entry: Entry) -> None:
        """Forget a request that has ended."""
        del self._entries[entry.name]
        self.withdraw(entry)

    def withdraw(self, entry: Entry) -> None:
        """The present engine has it no more, or what it still says of it does not count."""
        if entry.number is not None:
            del self._by_number[entry.number]
            entry.number = None

    def submit(self, entry: Entry, now: float) -> WireRequest:
        """The request for the present engine, from its next token on; WireError if it cannot go.

        Every submission has a number of its own, so that late news of an earlier one are nobody's.
        """
        assert entry.number is None, "an engine has it already"
        request = entry.request
        parent = None
        if request.parent_id is not None and (before := self.find(request.parent_id)) is not None:
            parent = before.number
        resumed = replace(request, emitted=entry.emitted, resumed=entry.is_promised)
        wire = request_to_wire(resumed, self._next_number, parent)
        entry.number, entry.is_promised = self._next_number, True
        self._by_number[self._next_number] = entry
        self._next_number += 1
        if entry.lost_at is not None:
            entry.lost_seconds += max(0.0, now - entry.lost_at)
            entry.lost_at = None
        return wire

    def advance(self, entry: Entry, wire: WireEvent, now: float) -> TokenEvent:
        """Write an event of an entry down; the event for the front end."""
        if wire.position != len(entry.emitted):
            raise JournalError(
                f"the engine gave token {wire.position} of a request that has "
                f"{len(entry.emitted)} tokens"
            )
        event = event_from_wire(wire, entry.request.request_id)
        entry.emitted.extend(wire.tokens)
        if wire.tokens and entry.first_token_at is None:
            entry.first_token_at = now
        if event.finish_reason is not None:
            self.close(entry)
        if event.stats is not None and entry.lost_seconds:
            event.stats.first_token_at = entry.first_token_at
            event.stats.num_output_tokens = len(entry.emitted)
            event.stats.wait_seconds[RESTART] = entry.lost_seconds
        return event

    def lose_engine(self, now: float) -> None:
        """The engine is gone, and with it whatever it had."""
        for entry in self._by_number.values():
            entry.number = None
            if entry.lost_at is None:
                entry.lost_at = now
        self._by_number.clear()
