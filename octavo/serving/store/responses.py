"""The responses that are kept: a bounded number of bytes, for a bounded time, by key and id.

The index is in memory. The contents are on a shelf: in memory too, or in a file of SQLite. If there
is no room, the key that has the most loses its oldest response that has ended, or the events of one
that has not, so that no key can make others' responses disappear. What cannot be taken away, since
it is being answered, keys share as `Shares` says.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from msgspec import Struct

from octavo.client.durable.kept import Kept
from octavo.serving.bounds.shares import ALONE, Shares
from octavo.serving.store.run import Run
from octavo.transport.errors import ApiError

ENTRY_BYTES = 512  # that a response takes besides its contents
FINAL = frozenset({"completed", "incomplete", "failed", "cancelled"})

StoredItem = tuple[str, bytes]  # its id, and the item as JSON


class Content(Struct, array_like=True, frozen=True):
    """The parts of a response that are kept."""

    body: bytes  # the response, as JSON
    items: tuple[StoredItem, ...]  # all that precede the answer
    events: bytes = b""  # of a response in the background that has ended, compressed

    @property
    def num_bytes(self) -> int:
        """The bytes that count."""
        size = len(self.body) + len(self.events)
        return size + sum([len(name) + len(item) for name, item in self.items])


class Answerer(Protocol):
    """The writer of a response, as the store and the background know it."""

    def shown(self, status: str) -> bytes:
        """Return the response as it is now, with this status."""

    def cancel(self) -> bytes:
        """End the response; return its last event."""

    def failure(self, error: ApiError) -> bytes:
        """End the response with an error; return its last event."""


@dataclass(slots=True, eq=False)
class Entry:
    """One response in the index."""

    owner: str
    id: str
    created: int  # seconds since 1970, as clients see it
    expires_at: float
    status: str
    is_background: bool
    is_stream: bool
    num_bytes: int = 0
    num_settled: int = 0  # of those, what its end takes
    num_event_bytes: int = 0  # of those, what its events take while it is answered
    num_open_bytes: int = 0  # what it took when it began, until it has ended
    is_kept: bool = True  # False once it was deleted or forgotten
    answerer: Answerer | None = None  # only while it is answered

    @property
    def is_final(self) -> bool:
        """True if the response has ended."""
        return self.status in FINAL


class Shelf:
    """The place of the contents: memory, whose contents end with the server. Only `read` waits."""

    def __init__(self) -> None:
        self._contents: dict[Entry, Content] = {}

    @property
    def is_full(self) -> bool:
        """True while nothing more can be kept."""
        return False

    def put(self, entry: Entry, content: Content) -> None:
        """Store the content of a response, in place of an earlier one."""
        self._contents[entry] = content

    def settle(self, entry: Entry, body: bytes) -> None:
        """Keep how a response has ended; its items remain."""
        self._contents[entry] = Content(body, self._contents[entry].items)

    def add_events(self, entry: Entry, events: bytes) -> None:
        """Keep the events of a response that has ended."""
        before = self._contents[entry]
        self._contents[entry] = Content(before.body, before.items, events)

    def drop(self, entry: Entry) -> None:
        """Forget the content of a response."""
        self._contents.pop(entry, None)

    async def read(self, entry: Entry) -> Content | None:
        """Return the content of a response; None if it was dropped meanwhile."""
        return self._contents.get(entry)

    async def close(self) -> None:
        """Write what is left."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of what is kept."""

    seconds: float
    num_bytes: int
    num_responses: int = 65_536


class ResponseStore(Kept[Entry]):
    """The responses of one server; all calls come from one event loop."""

    def __init__(
        self,
        limits: Limits,
        shelf: Shelf,
        clock: Callable[[], float],
        found: list[Entry] | None,
        shares: Shares = ALONE,
    ) -> None:
        self._limits = limits
        self._shares = shares
        self._shelf = shelf
        self._clock = clock
        super().__init__(limits.num_bytes, limits.num_responses)
        self._open_bytes: Counter[str] = Counter()  # by owner
        self.runs: dict[Entry, Run] = {}  # of responses in the background
        for entry in found or ():
            self._insert(entry)

    def unfinished(self) -> list[Entry]:
        """Return the responses that have not ended."""
        return [entry for entry in self if not entry.is_final]

    def find(self, owner: str, name: str) -> Entry | None:
        """Return the response of this id that this owner made, if it is still kept."""
        self._expire()
        return super().find(owner, name)

    def begin(self, entry: Entry, content: Content) -> bool:
        """Keep a response that begins; return False if there is no room for it."""
        before = super().find(entry.owner, entry.id)
        if before is not None:
            if not before.is_final:
                raise ApiError(
                    409,
                    f"the response {entry.id[:192]!r} has not ended; send each request with an "
                    "X-Request-Id of its own, or leave it out",
                    code="request_id_in_use",
                )
            self.forget(before)
        entry.num_bytes = ENTRY_BYTES + content.num_bytes
        entry.num_settled = len(content.body)
        entry.expires_at = self._clock() + self._limits.seconds
        left = self._shares.left(entry.owner, self._open_bytes, self._limits.num_bytes)
        has_room = left >= entry.num_bytes and not self._shelf.is_full
        if not has_room or not self._make_room(entry.owner, entry.num_bytes, 1):
            entry.is_kept = False
            return False
        entry.num_open_bytes = entry.num_bytes
        self._open_bytes[entry.owner] += entry.num_bytes
        self._insert(entry)
        self._shelf.put(entry, content)
        return True

    def settle(self, entry: Entry, status: str, body: bytes) -> None:
        """Keep how a response has ended; forget it if it has become too large."""
        if not entry.is_kept:
            return
        entry.status, entry.answerer = status, None
        self._close(entry)
        self._grow(entry, len(body) - entry.num_settled)
        entry.num_settled = len(body)
        self._spare_one(entry)
        self._shelf.settle(entry, body)
        self._make_room(entry.owner)

    def hold_events(self, entry: Entry, num_bytes: int) -> None:
        """Count the events of a response that is being answered."""
        if entry.is_kept:
            self._grow(entry, num_bytes - entry.num_event_bytes)
            entry.num_event_bytes = num_bytes
            self._make_room(entry.owner)

    def keep_events(self, entry: Entry, events: bytes) -> None:
        """Keep the events of a response that has ended."""
        if entry.is_kept:
            self._grow(entry, len(events) - entry.num_event_bytes)
            entry.num_event_bytes = 0
            self._shelf.add_events(entry, events)
            self._make_room(entry.owner)

    def abandon(self, entry: Entry, answerer: Answerer) -> None:
        """Note that a writer will not end its response, unless another one answers it now."""
        if entry.answerer is answerer:
            entry.answerer = None
            if not entry.is_final:
                self.settle(entry, "cancelled", answerer.shown("cancelled"))

    async def read(self, entry: Entry) -> Content | None:
        """Return what is kept of a response; None if it was forgotten meanwhile."""
        return await self._shelf.read(entry) if entry.is_kept else None

    def forget(self, entry: Entry) -> None:
        """Forget a response, and give its bytes back."""
        if not entry.is_kept:
            return
        entry.is_kept = False
        self._close(entry)
        self._remove(entry, entry.id)
        entry.num_event_bytes = 0  # its run may still go on, and has nothing more to give
        self._shelf.drop(entry)

    async def close(self) -> None:
        """End the responses in the background, and write what is left."""
        tasks = {run.task for run in self.runs.values() if run.task is not None}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._shelf.close()

    def _insert(self, entry: Entry) -> None:
        self._add(entry, entry.id)
        if entry.is_final:
            self._spare_one(entry)

    def _expire(self) -> None:
        """Forget what is older than the limit; the oldest come first."""
        now = self._clock()
        while (oldest := next(iter(self._things.values()), None)) and oldest.expires_at <= now:
            self.forget(oldest)

    def _close(self, entry: Entry) -> None:
        """Count a response no longer as one that is being answered."""
        self._open_bytes[entry.owner] -= entry.num_open_bytes
        if not self._open_bytes[entry.owner]:
            del self._open_bytes[entry.owner]
        entry.num_open_bytes = 0

    def _make_room(self, owner: str | None, num_bytes: int = 0, num_more: int = 0) -> bool:
        """Drop what may be forgotten until so much more of a key fits; return whether it does."""
        self._expire()
        return super()._make_room(owner, num_bytes, num_more)

    def _drop(self, name: str, owner: str | None) -> bool:
        """Forget the events of a key's response that has the most; return False if none has any."""
        of_key = [each for each in self.runs if each.owner == name]
        largest = max(of_key, key=lambda each: each.num_event_bytes, default=None)
        if largest is None or not largest.num_event_bytes:
            return False
        self.runs[largest].drop()
        self._grow(largest, -largest.num_event_bytes)
        largest.num_event_bytes = 0
        return True
