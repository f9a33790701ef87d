"""The engines as the front end sees them, wherever they run: events down, events up, an end.

There is one engine, or a set of equal ones, of which any can continue what another has begun.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from octavo.client.commands import COMMAND_SECONDS
from octavo.client.errors import EngineDeadError
from octavo.client.vitals import EngineVitals
from octavo.core.request import Abort, Request, TokenEvent
from octavo.core.snapshot import EngineSnapshot
from octavo.wire.commands import Command, Reply
from octavo.wire.facts import EngineFacts

if TYPE_CHECKING:
    import asyncio

ENGINE_PROGRAM = "octavo.engine.process"  # the module that an engine's process runs

Deliver = Callable[[Sequence[TokenEvent]], None]
Died = Callable[[EngineDeadError], None]


class EngineState(Protocol):
    """One engine of a client, as far as it is reported on."""

    @property
    def vitals(self) -> EngineVitals:
        """The counts and times of the engine's life, which change as it lives."""

    def snapshot(self) -> EngineSnapshot:
        """Return the engine's newest statistics."""

    def command(self, command: Command, seconds: float = COMMAND_SECONDS) -> asyncio.Future[Reply]:
        """Send a command to this engine alone; see `EngineClient.command`."""

    def request_id(self, name: str) -> str | None:
        """Return the id of the request that the engine calls so; None if it has ended."""

    def is_well(self) -> bool:
        """Return whether the engine is ready and alive; False while it is restarted."""

    @property
    def is_ready(self) -> bool:
        """True if it can be given requests, whether or not it shows signs of life."""

    @property
    def is_closed(self) -> bool:
        """True if it will not run again; the others go on."""


class EngineClient(Protocol):
    """A set of engines that are ready; most often it is one.

    Until `attach` it may be used from any thread; afterwards every method but `close` is called in
    the event loop to which it is attached, and its callbacks are called in that loop.
    """

    @property
    def facts(self) -> EngineFacts:
        """The facts about the engine and its model."""

    @property
    def members(self) -> Sequence[EngineState]:
        """The engines, each under its number."""

    def attach(self, deliver: Deliver, died: Died) -> None:
        """Attach to the running event loop: pass events to `deliver`, a final end to `died`.

        When that loop has ended, the engine may be attached to another.
        """

    def watch(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever an engine has become ready or has ended."""

    def send(self, events: Sequence[Request | Abort]) -> None:
        """Send requests and aborts to the engine, in order, without blocking.

        Every request receives events, in order and without a gap, up to exactly one that carries a
        finish reason, unless `died` is called.
        """

    def command(self, command: Command, seconds: float = COMMAND_SECONDS) -> asyncio.Future[Reply]:
        """Send a command to all engines, in order with requests; return their only reply.

        The reply is an error if an engine does not obey or does not reply within so many seconds,
        or if there is none until the end. A pause holds for every later engine, until it is
        resumed.
        """

    def snapshot(self) -> EngineSnapshot:
        """Return the newest statistics of all engines together."""

    def is_well(self) -> bool:
        """Return whether an engine is ready and alive."""

    @property
    def is_sleeping(self) -> bool:
        """True if the engines have ended by `sleep`, and `wake_up` has not been called."""

    def restart(self, index: int) -> None:
        """End one engine, and start another in its place; its requests continue.

        Raise ConfigError if the engine cannot end without this process.
        """

    def sleep(self) -> None:
        """End the engines until `wake_up`; requests are kept, and continue in the next engine.

        Raise ConfigError if the engine cannot end without this process.
        """

    def wake_up(self) -> None:
        """Start the engines again after `sleep`."""

    def close(self) -> None:
        """End the engines; no callback follows. Safe to call twice, and from any thread."""
