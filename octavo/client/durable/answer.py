"""One answer of a durable request: its tokens so far, and the events that repeat them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from octavo.client.durable.records import decode_event, encode_event, restored
from octavo.core.request import FinishReason, TokenEvent
from octavo.wire.message_types import WireEvent

MOST_TOKENS = 256  # of an event that is repeated: more would hold the event loop for long
_EVENT_BYTES = 64  # that a kept event takes besides its own


@dataclass(slots=True)
class Answer:
    """The tokens of one answer, 4 bytes each, and whole events only where they hold more."""

    number: int
    tokens: array[int] = field(default_factory=partial(array, "i"))
    events: list[bytes] = field(default_factory=list)  # encoded: with a payload, or the last
    finish_reason: FinishReason | None = None
    sampler_state: float | None = None  # behind the tokens, of a sampler that has one

    def add(self, event: WireEvent) -> int:
        """Add an event; return the bytes that it takes, 0 for one that does not follow the last."""
        if event.position != len(self.tokens) or self.finish_reason is not None:
            return 0
        if event.payload is not None and restored(event) is None:
            return 0
        self.tokens.extend(event.tokens)
        self.finish_reason = event.finish_reason
        if event.sampler_state is not None:
            self.sampler_state = event.sampler_state
        num_bytes = 4 * len(event.tokens)
        if event.payload is not None or event.finish_reason is not None:
            self.events.append(encode_event(event))
            num_bytes += len(self.events[-1]) + _EVENT_BYTES
        return num_bytes

    def copy(self) -> Answer:
        """Return a copy that another thread may read."""
        return replace(self, tokens=self.tokens[:], events=self.events[:])

    def recorded(self) -> Iterator[WireEvent]:
        """Yield the events that restore this answer, in order and without a gap."""
        at = 0
        for data in self.events:
            event = decode_event(data)
            yield from self._plain(at, event.position)
            yield event
            at = event.position + len(event.tokens)
        yield from self._plain(at, len(self.tokens))

    def replayed(self) -> Iterator[TokenEvent]:
        """Yield the events for a new continuation."""
        for each in self.recorded():
            event = restored(each)
            assert event is not None, "it was checked when it was added"
            yield event

    def _plain(self, begin: int, end: int) -> Iterator[WireEvent]:
        for at in range(begin, end, MOST_TOKENS):
            tokens = self.tokens[at : min(end, at + MOST_TOKENS)]
            # That of tokens further in front is not kept, and nothing continues behind these.
            state = self.sampler_state if at + len(tokens) == len(self.tokens) else None
            yield WireEvent(self.number, at, tuple(tokens), sampler_state=state)
