"""Two engines of which one has all the requests, until it ends or hands them over to the other.

No part of Octavo chooses among engines. This is the least that can: an `Engine` over two others,
which are the real ones, below the real keeper of requests (`JournalClient`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from octavo.client.commands import COMMAND_SECONDS
from octavo.client.engine import EngineUser
from octavo.client.process import ProcessEngine
from octavo.client.vitals import EngineVitals
from octavo.core.snapshot import EngineLoad, EngineSnapshot
from octavo.wire.commands import Command, Reply
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import AbortRequests, AddRequests, WireEvent


class _Side:
    """The user of one of the engines, which passes on what concerns the keeper of requests."""

    def __init__(self, pair: Pair, index: int) -> None:
        self._pair = pair
        self._index = index

    @property
    def _is_chosen(self) -> bool:
        return self._pair.chosen == self._index

    def has_requests(self) -> bool:
        return self._is_chosen and self._pair.user.has_requests()

    def on_ready(self, epoch: int) -> None:
        pair = self._pair
        if not self._is_chosen and not pair.is_without:
            return  # it stands by
        pair.choose(self._index)

    def on_events(self, events: Sequence[WireEvent]) -> None:
        # Also those of the other engine: what it still sends must do no harm.
        self._pair.user.on_events(events)

    def deliver(self, merge: bool) -> None:
        self._pair.user.deliver(merge)

    def on_end(self, last_step: tuple[int, ...], was_killed: bool, reason: str) -> bool:
        pair = self._pair
        if not self._is_chosen:
            return False
        is_cause_found = pair.user.on_end(last_step, was_killed, reason)
        pair.num_deaths += pair.lose()
        return is_cause_found

    def on_give_up(self, message: str) -> None:
        if self._pair.is_closed:
            self._pair.user.on_give_up(message)


class Pair:
    """Implements `octavo.client.engine.Engine` over two engines in processes of their own."""

    user: EngineUser

    def __init__(self, first: ProcessEngine, second: ProcessEngine) -> None:
        self.engines = (first, second)
        self.chosen = 0  # the engine that has the requests, or will have them
        self.is_without = False  # the chosen engine has ended, and none was ready
        self.num_deaths = 0  # … of an engine whose requests the other continued
        self.num_drains = 0

    @property
    def engine(self) -> ProcessEngine:
        """The engine that has the requests."""
        return self.engines[self.chosen]

    # handing over

    def choose(self, index: int) -> None:
        """Give all requests to an engine that is ready; no engine has any."""
        self.chosen, self.is_without = index, False
        self.user.on_ready(self.engine.supervisor.run.epoch if self.engine.supervisor.run else 0)
        self.engine.flush()

    def lose(self) -> bool:
        """Give what an engine has lost to the other; return False if that is not ready."""
        other = 1 - self.chosen
        self.is_without = not self.engines[other].is_ready
        if not self.is_without:
            self.choose(other)
        return not self.is_without

    def hand_over(self, numbers: Sequence[int]) -> bool:
        """Let the other engine continue these requests, which are all, if both are ready."""
        old = self.engine
        if self.is_closed or not (old.is_ready and self.engines[1 - self.chosen].is_ready):
            return False
        self.user.on_end((), False, "it hands its requests over")
        if numbers:
            old.write(AbortRequests(tuple(numbers)))
            old.flush()
        self.lose()
        self.user.deliver(merge=False)
        self.num_drains += 1
        return True

    # as an engine

    def use(self, user: EngineUser) -> None:
        self.user = user
        for index, engine in enumerate(self.engines):
            engine.use(_Side(self, index))

    def attach(self) -> None:
        for engine in self.engines:
            engine.attach()

    def close(self) -> None:
        for engine in self.engines:
            engine.close()

    @property
    def vitals(self) -> EngineVitals:
        return self.engine.vitals

    @property
    def totals(self) -> EngineSnapshot:
        return self.engine.totals

    @property
    def load(self) -> EngineLoad:
        return self.engine.load

    @property
    def closed_reason(self) -> str:
        return self.engine.closed_reason

    @property
    def facts(self) -> EngineFacts:
        return self.engines[0].facts

    @property
    def is_ready(self) -> bool:
        return not self.is_without and self.engine.is_ready

    @property
    def is_closed(self) -> bool:
        return all(engine.is_closed for engine in self.engines)

    def is_well(self) -> bool:
        return self.engine.is_well()

    @property
    def is_sleeping(self) -> bool:
        return self.engine.is_sleeping

    def sleep(self) -> None:
        for engine in self.engines:
            engine.sleep()

    def wake_up(self) -> None:
        for engine in self.engines:
            engine.wake_up()

    def write(self, message: AddRequests | AbortRequests) -> None:
        self.engine.write(message)

    def flush(self) -> None:
        self.engine.flush()

    def note_work(self) -> None:
        self.engine.note_work()

    def note_progress(self) -> None:
        self.engine.note_progress()

    def command(self, command: Command, seconds: float = COMMAND_SECONDS) -> asyncio.Future[Reply]:
        """Send a command to both; return the reply of the engine that has the requests."""
        replies = [engine.command(command, seconds) for engine in self.engines]
        return replies[self.chosen]
