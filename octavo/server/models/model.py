"""One of several models: its name, its state, and the requests that use it or wait for it."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field
from enum import StrEnum

from octavo.server.models.memory import Need
from octavo.server.models.opening import Context
from octavo.transport.errors import ApiError


class State(StrEnum):
    """The states of a model, as lists of models show them."""

    UNLOADED = "unloaded"
    LOADING = "loading"
    LOADED = "loaded"
    SLEEPING = "sleeping"


@dataclass(slots=True, eq=False)
class Model:
    """A model that requests may name."""

    name: str
    source: str  # a directory, a file, or a name on the hub
    files: tuple[str, ...] = ()  # of the weights
    state: State = State.UNLOADED
    context: Context | None = None  # while it is loaded or sleeps
    need: Need | None = None  # once it was computed
    num_uses: int = 0  # requests that have been given its server
    waiting: list[asyncio.Future[None]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None  # that loads it
    is_leaving: bool = False  # no further request gets its server, until it has slept
    has_made_room: bool = False  # it sleeps because another needed its memory
    ends_when_idle: bool = False  # a client has asked for it to be unloaded
    last_used: float = -math.inf
    idle_seconds: float | None = None  # after which it sleeps
    num_loads: int = 0  # since the start, those from sleep included
    failure: ApiError | None = None  # of the last attempt to load it
    failed_at: float = -math.inf

    @property
    def status(self) -> State:
        """The state as llama-server names it: there, what has made room is unloaded."""
        is_gone = self.has_made_room and self.state is State.SLEEPING
        if not is_gone and self.state is not State.UNLOADED:
            return self.state
        return State.UNLOADED if self.task is None else State.LOADING  # or waits for its turn

    @property
    def is_idle(self) -> bool:
        """True if no request has its server, and nothing is answered in the background."""
        return not self.num_uses and (self.context is None or self.context.is_idle)

    @property
    def is_busy(self) -> bool:
        """True if it would be missed at once."""
        return not self.is_idle or any(not each.done() for each in self.waiting)

    @property
    def is_ready(self) -> bool:
        """True if requests may be given its server now."""
        if self.state is not State.LOADED or self.is_leaving or self.context is None:
            return False
        return not self.context.is_dead

    def admit(self) -> None:
        """Give its server to the requests that wait, which use it from this moment on."""
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            if not each.done():
                self.num_uses += 1
                each.set_result(None)

    def refuse(self, error: ApiError) -> None:
        """Fail the requests that wait."""
        waiting, self.waiting = self.waiting, []
        for each in waiting:
            if not each.done():
                each.set_exception(anew(error))


def anew(error: ApiError) -> ApiError:
    """Return an equal error, without the frames of the request that it was raised in."""
    code, param = error.code, error.param
    return ApiError(error.status, error.message, code=code, param=param, headers=error.headers)
