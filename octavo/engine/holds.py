"""Requests that wait for what is made beside the steps: their grammars, their adapters.

The core holds such a request until all that it waits for is ready. Meanwhile it is suspected if the
engine ends, since what is made for it may be what ends the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from octavo.core.engine import EngineCore
from octavo.core.request import Ready, Request, TokenEvent


class Holder(Protocol):
    """A maker of something for requests, beside the steps; the engine's own thread uses it."""

    @property
    def num_held(self) -> int:
        """The number of requests that still wait for it."""

    def hold(self, request: Request) -> Request:
        """Return a request as it is, or with one more reason to be held."""

    def take(self) -> list[Ready]:
        """Return what has become ready, or failed, since the last call."""

    def leave(self, request_id: str) -> bool:
        """Forget a request that has ended; return whether it still waited."""


class Suspects(Protocol):
    """The requests that may be at fault if the engine ends now."""

    def begin(self, number: int) -> None:
        """Record a request that is worked on beside the steps, until `end`."""

    def end(self, number: int) -> None:
        """Record that the work on a request beside the steps has ended."""


class Holds:
    """The requests that any of several holders holds."""

    def __init__(self, holders: Sequence[Holder], suspects: Suspects | None) -> None:
        self._holders = holders
        self._suspects = suspects  # None: the engine ends with its caller's process
        self._reasons: dict[str, int] = {}  # by request: how many it still waits for

    @property
    def num_held(self) -> int:
        return len(self._reasons)

    def add(self, core: EngineCore, request: Request) -> None:
        """Add a request to the core, which holds it if it must wait."""
        if not self._holders:
            core.on_event(request)
            return
        num_before = len(request.holds)
        for holder in self._holders:
            request = holder.hold(request)
        num = len(request.holds) - num_before
        if num:
            self._reasons[request.request_id] = num
            if self._suspects is not None:
                self._suspects.begin(int(request.request_id))
        core.on_event(request)

    def take(self, core: EngineCore) -> None:
        """Pass on to the core what has become ready, or has failed."""
        if not self._reasons:
            return
        for holder in self._holders:
            if holder.num_held:
                for ready in holder.take():
                    self._count(ready.request_id)
                    core.on_event(ready)

    def leave(self, events: Sequence[TokenEvent]) -> None:
        """Forget the requests that have ended."""
        if not self._holders:
            return
        for event in events:
            if event.finish_reason:
                for holder in self._holders:
                    if holder.leave(event.request_id):
                        self._count(event.request_id)

    def _count(self, request_id: str) -> None:
        num = self._reasons.pop(request_id)
        if num > 1:
            self._reasons[request_id] = num - 1
        elif self._suspects is not None:
            self._suspects.end(int(request_id))
