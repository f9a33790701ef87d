"""An engine as its user sees it that keeps the requests: numbered requests down, their events up.

The engine knows nothing of a request but its number. When its process ends, so does everything that
it had, and another process begins; the user then submits what it wants continued.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from octavo.client.commands import COMMAND_SECONDS
from octavo.client.vitals import EngineVitals
from octavo.core.snapshot import EngineLoad, EngineSnapshot
from octavo.wire.commands import Command, Reply
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import AbortRequests, AddRequests, WireEvent


class EngineUser(Protocol):
    """The keeper of the requests; a method may call the engine back."""

    def has_requests(self) -> bool:
        """Return whether the engine has requests that have not ended."""

    def on_ready(self, epoch: int) -> None:
        """Submit requests to a new engine."""

    def on_events(self, events: Sequence[WireEvent]) -> None:
        """Record events; raise WireError if the engine must not be trusted any more."""

    def deliver(self, merge: bool) -> None:
        """Deliver recorded events to the callers, merged if they came in several frames."""

    def on_end(self, last_step: tuple[int, ...], was_killed: bool, reason: str) -> bool:
        """Take back all requests; return whether one was found that crashes engines.

        The engine is not ready.
        """

    def on_give_up(self, message: str) -> None:
        """Fail all callers, since no further engine is started."""


class Engine(Protocol):
    """An engine, and those that follow it when it ends.

    All methods are called in the event loop to which it is attached, as those of its user are.
    """

    @property
    def vitals(self) -> EngineVitals:
        """The counts and times of the engine's life, which change as it lives."""

    @property
    def totals(self) -> EngineSnapshot:
        """The statistics of all engines so far."""

    @property
    def load(self) -> EngineLoad:
        """The load as the present engine last reported it."""

    @property
    def closed_reason(self) -> str:
        """The reason for callers, once there will be no engine any more."""

    @property
    def facts(self) -> EngineFacts:
        """The facts about the engine and its model."""

    @property
    def is_ready(self) -> bool:
        """True if requests can be written, and the engine was not asked to end."""

    @property
    def is_closed(self) -> bool:
        """True if there will be no engine any more."""

    @property
    def is_sleeping(self) -> bool:
        """True if there is no engine until `wake_up`."""

    def use(self, user: EngineUser) -> None:
        """Set the engine's user, before its start."""

    def attach(self) -> None:
        """Attach to the running event loop."""

    def write(self, message: AddRequests | AbortRequests) -> None:
        """Queue a message; raise WireError, and change nothing, if it cannot be encoded."""

    def flush(self) -> None:
        """Send the queued messages, or as many as the engine accepts."""

    def note_work(self) -> None:
        """Note that the engine has work from now on; it could make no progress before."""

    def note_progress(self) -> None:
        """Note that a request has got a token."""

    def command(self, command: Command, seconds: float = COMMAND_SECONDS) -> asyncio.Future[Reply]:
        """Send a command; see `octavo.client.client.EngineClient`."""

    def is_well(self) -> bool:
        """Return whether the engine is ready and alive."""

    def restart(self) -> None:
        """End the engine, and start another in its place."""

    def sleep(self) -> None:
        """End the engine until `wake_up`."""

    def wake_up(self) -> None:
        """Start an engine again after `sleep`."""

    def close(self) -> None:
        """End the engine; safe to call twice, and from any thread."""
