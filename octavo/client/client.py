"""The engine as the front end sees it, wherever it runs: events down, events up, facts, an end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from octavo.core.request import Event, TokenEvent
from octavo.core.snapshot import EngineSnapshot
from octavo.wire.facts import EngineFacts


class EngineDeadError(RuntimeError):
    """There is no engine: it was closed, or it ended by an error, which is chained or quoted."""


class EngineStartError(RuntimeError):
    """The engine could not be started; the message is its own."""


Deliver = Callable[[Sequence[TokenEvent]], None]
Died = Callable[[EngineDeadError], None]


class EngineClient(Protocol):
    """An engine that has been started and is ready.

    Until `attach` it may be made and closed anywhere; from then on all but `close` is called in
    the event loop it is attached to, and in that loop it calls back.
    """

    @property
    def facts(self) -> EngineFacts:
        """What is known of the engine and its model."""

    def attach(self, deliver: Deliver, died: Died) -> None:
        """Belong to the running event loop: hand events to `deliver`, a final end to `died`.

        Again in another loop when the first has ended.
        """

    def send(self, events: Sequence[Event]) -> None:
        """Give the engine requests and commands, in this order; it never waits.

        Every request gets events, in order and without a gap, up to exactly one that carries a
        finish reason; unless `died` is called.
        """

    def snapshot(self) -> EngineSnapshot:
        """The newest statistics."""

    def is_well(self) -> bool:
        """Whether an engine is there and shows signs of life; False while one is restarted."""

    def close(self) -> None:
        """End the engine. Safe to call twice, from any thread; nobody is called back any more."""
