"""The engine in a thread of this process: it takes what it is sent, steps, and tells the loop."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence

from octavo.client.client import Deliver, Died, EngineDeadError
from octavo.core.engine import EngineCore
from octavo.core.request import Abort, Event, TokenEvent
from octavo.core.sampling_params import LogitsProcessor
from octavo.core.snapshot import EngineSnapshot, take_snapshot
from octavo.engine_arguments import EngineArguments
from octavo.wire.facts import EngineFacts

log = logging.getLogger(__name__)

SNAPSHOT_SECONDS = 0.5


class InlineClient:
    """Implements `octavo.client.client.EngineClient`; an error in a step is the engine's end."""

    def __init__(self, core: EngineCore, facts: EngineFacts) -> None:
        self._core: EngineCore | None = core
        self._facts = facts
        self._inbox: deque[Event] = deque()  # bounded by the callers: each adds n requests
        # Guards the inbox, and which loop it is that is told.
        self._wake = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliver: Deliver = lambda events: None
        self._died: Died = lambda error: None
        self._is_closing = False
        self._snapshot = EngineSnapshot(num_blocks=facts.num_blocks)
        self._thread = threading.Thread(target=self._run, name="octavo engine", daemon=True)

    @classmethod
    def start(
        cls, arguments: EngineArguments, processors: Mapping[str, LogitsProcessor] | None
    ) -> InlineClient:
        """The engine that these arguments ask for."""
        from octavo.engine.build import start_local_engine  # torch comes with it

        engine = start_local_engine(arguments, processors=processors)
        return cls(engine.core, engine.facts)

    @property
    def facts(self) -> EngineFacts:
        return self._facts

    def attach(self, deliver: Deliver, died: Died) -> None:
        with self._wake:
            self._deliver, self._died = deliver, died
            self._loop = asyncio.get_running_loop()
            if not self._thread.is_alive():
                self._thread.start()

    def send(self, events: Sequence[Event]) -> None:
        if events:
            with self._wake:
                self._inbox.extend(events)
                self._wake.notify()

    def snapshot(self) -> EngineSnapshot:
        return self._snapshot

    def is_well(self) -> bool:
        return not self._is_closing and self._thread.is_alive()

    def close(self) -> None:
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._core = None  # with the weights and the cache

    def _run(self) -> None:
        core = self._core
        assert core is not None
        try:
            self._work(core)
        except BaseException as error:  # the thread's boundary: callers must hear of it
            log.exception("the engine's thread has ended")
            dead = EngineDeadError(
                f"the engine has stopped after an error: {type(error).__name__}: {error}"
            )
            dead.__cause__ = error
            with self._wake:
                self._is_closing = True
                assert self._loop is not None
                if not self._loop.is_closed():
                    self._loop.call_soon_threadsafe(self._died, dead)

    def _work(self, core: EngineCore) -> None:
        snapshot_at = 0.0
        while True:
            with self._wake:
                while not (self._inbox or self._is_closing or core.has_work):
                    self._snapshot = take_snapshot(core, time.monotonic())
                    self._wake.wait()
                if self._is_closing:
                    return
                inbox, self._inbox = self._inbox, deque()
            for event in inbox:
                core.on_event(event)
            events = core.step()
            now = time.monotonic()
            if now >= snapshot_at:
                snapshot_at = now + SNAPSHOT_SECONDS
                self._snapshot = take_snapshot(core, now)
            if events and not self._tell(events):
                for name in list(core.scheduler.sequences):
                    core.on_event(Abort(name))

    def _tell(self, events: list[TokenEvent]) -> bool:
        """Hand events to the loop; False if it has ended, and whoever waited in it."""
        with self._wake:
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._deliver, events)
            except RuntimeError:  # closed, perhaps this very moment
                return False
        return True
