"""The engine in a process of its own, begun again when it dies, so that no request is lost.

States: starting → ready → (dead engine) → resting → starting … until closed or given up.

    frames up      decoded, checked, written into the journal, handed on
    frames down    numbered; what the socket does not take now waits here
    a death        told by the process's descriptor, by silence, or by a step that takes too long;
                   all open requests are given to the next engine as prompt + emitted tokens

Every judgement of time is on the event loop's clock, and is made after reading all there is.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import assert_never

from octavo.client.client import Deliver, Died, EngineDeadError, EngineStartError
from octavo.client.coalesce import coalesce
from octavo.client.frames import Downlink, Said, Uplink, in_batches
from octavo.client.journal import Entry, Journal, JournalError
from octavo.client.launcher import EngineProcess, Incoming, Launcher
from octavo.client.liveness import TICK_SECONDS, Liveness
from octavo.client.quarantine import Quarantine
from octavo.client.restart_policy import RestartPolicy, Timing
from octavo.core.request import (
    Abort,
    Event,
    Pause,
    Request,
    ResetPrefixCache,
    Resume,
    TokenEvent,
)
from octavo.core.snapshot import EngineSnapshot
from octavo.engine_arguments import EngineArguments
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import (
    Add,
    Command,
    Down,
    Drop,
    Failed,
    Hello,
    News,
    Pulse,
    Ready,
    Start,
    WireError,
    WireRequest,
)

log = logging.getLogger(__name__)

DUMP_SECONDS = 0.2  # for the stacks to be written before the process is killed
FRAMES_AT_ONCE = 64  # read before anybody else in the event loop has a turn


class State(Enum):
    """Where the client is."""

    STARTING = auto()  # a process is there, its engine is not
    READY = auto()
    RESTING = auto()  # no process: the next is started after a while
    OVER = auto()  # closed, or given up


class ProcessClient:
    """Implements `octavo.client.client.EngineClient`, once `start` has waited for the engine."""

    def __init__(
        self,
        arguments: EngineArguments,
        launcher: Launcher,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._arguments = arguments
        self._launcher = launcher
        self._timing = timing or Timing()
        self._vigil = Liveness(self._timing, clock())
        self._clock = clock
        self._journal = Journal()
        self._suspicion = Quarantine()
        self._state = State.OVER
        self._epoch = 0
        self._engine: EngineProcess | None = None
        self._facts: EngineFacts | None = None
        self._snapshot = self._earlier = EngineSnapshot()  # all engines'; the dead ones'
        self._is_paused = False
        self._down: Downlink | None = None
        self._up: Uplink | None = None
        self._reason: str | None = None  # why the present engine has been, or will be, ended
        self._is_condemned = False  # it is being ended: what it still says does not count
        self.restarts = RestartPolicy(self._timing)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._deliver: Deliver = lambda events: None
        self._died: Died = lambda error: None
        self._news: list[TokenEvent] = []  # written down, and not handed on yet
        self._is_reading = False
        self._is_closed = False
        self._over = "the engine is closed"

    # life

    def launch(self) -> None:
        """Start the first engine; `start` then waits for it."""
        try:
            self._launch()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Wait until the first engine is ready; EngineStartError if it is not to be.

        Outside of any event loop, since it takes as long as loading the model does.
        """
        try:
            if self._engine is None:
                self._launch()
            assert self._engine is not None
            while self._state is State.STARTING:
                self._launcher.wait(0.05)
                ending = self._engine.ending()
                self._read_all()
                if ending is not None and not self.is_well():
                    raise EngineStartError(self._reason or f"the engine did not start: {ending}")
                if (charge := self._vigil.charge(self._clock(), has_work=False)) is not None:
                    raise EngineStartError(charge)
        except BaseException:
            self.close()
            raise

    @property
    def facts(self) -> EngineFacts:
        assert self._facts is not None, "start() comes first"
        return self._facts

    def attach(self, deliver: Deliver, died: Died) -> None:
        self._loop = asyncio.get_running_loop()
        self._deliver, self._died = deliver, died
        self._vigil.wake(self._clock())
        for timer in self._timers.values():  # of a loop that has ended
            timer.cancel()
        self._timers.clear()
        self._is_reading = False
        self._launcher.attach(self._on_frames)
        if self._engine is not None:
            self._engine.watch(self._on_end)
            if self._is_condemned:
                self._engine.kill()
        elif self._state is State.RESTING:
            self._relaunch()
        self._on_tick()

    def close(self) -> None:
        loop = self._loop
        if loop is None or not loop.is_running() or asyncio._get_running_loop() is loop:
            self._close_now()
            return
        done = threading.Event()

        def close() -> None:
            self._close_now()
            done.set()

        loop.call_soon_threadsafe(close)
        done.wait()

    def _close_now(self) -> None:
        if self._is_closed:
            return
        self._state, self._is_closed = State.OVER, True
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        if self._engine is not None:
            self._engine.close()
        self._engine = self._down = None
        self._launcher.close()

    def is_well(self) -> bool:
        return (
            self._state is State.READY
            and not self._is_condemned
            and self._vigil.is_fresh(self._clock())
        )

    def snapshot(self) -> EngineSnapshot:
        return self._snapshot

    # down

    def send(self, events: Sequence[Event]) -> None:
        if self._state is State.OVER:
            if any(isinstance(event, Request) for event in events):
                raise EngineDeadError(self._over)
            return
        opened: list[Entry] = []
        for event in events:
            if isinstance(event, Request):
                opened.append(self._journal.open(event))
                continue
            self._submit(opened)
            opened = []
            match event:
                case Abort():
                    self._abort(event.request_id)
                case Pause() | Resume():
                    self._is_paused = isinstance(event, Pause)
                    self._vigil.move(self._clock())
                    self._command("pause" if self._is_paused else "resume")
                case ResetPrefixCache():  # a new engine has an empty one
                    self._command("reset_prefix_cache")
                case _:
                    assert_never(event)
        self._submit(opened)
        self._flush()

    def _submit(self, entries: Iterable[Entry]) -> None:
        """Give these to the engine, unless they have to wait for another time."""
        if self._state is not State.READY or self._is_condemned or self._suspicion.is_trying:
            return
        self._add(entries)

    def _add(self, entries: Iterable[Entry]) -> None:
        now, wires = self._clock(), []
        if not self._journal.num_submitted:
            self._vigil.move(now)
        for entry in entries:
            try:
                wires.append(self._journal.submit(entry, now))
            except WireError as error:
                self._refuse(entry, error)
        for batch in in_batches(wires):
            try:
                self._post(batch)
            except WireError:  # one of them is too large: see which
                for wire in batch.requests:
                    self._add_alone(wire)

    def _add_alone(self, wire: WireRequest) -> None:
        try:
            self._post(Add((wire,)))
        except WireError as error:
            entry = self._journal.at(wire.number)
            assert entry is not None
            self._refuse(entry, error)

    def _refuse(self, entry: Entry, error: WireError) -> None:
        self._finish(entry, entry.last_event("refused", str(error)))

    def _abort(self, name: str) -> None:
        entry = self._journal.find(name)
        if entry is None or entry.is_aborted:
            return
        entry.is_aborted = True
        if entry.number is None:
            self._finish(entry, entry.last_event("abort"))
        else:
            self._post(Drop((entry.number,)))

    def _finish(self, entry: Entry, event: TokenEvent) -> None:
        """End a request from here; whoever waits hears of it a little later."""
        self._journal.close(entry)
        if self._suspicion.forget(entry):
            self._after_trial()
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon(self._deliver, [event])

    def _command(self, verb: str) -> None:
        if self._state is State.READY and not self._is_condemned:
            self._post(Command(verb))  # type: ignore[arg-type]

    def _post(self, message: Down) -> None:
        assert self._down is not None
        self._down.post(message)

    def _flush(self) -> None:
        # Sending may swallow the news of a frame that has come.
        if self._down is not None and self._down.flush():
            self._read_soon()

    # up

    def _read_soon(self) -> None:
        if not self._is_reading and self._loop is not None:
            self._is_reading = True
            self._loop.call_soon(self._on_frames)

    def _on_frames(self) -> None:
        self._is_reading = False
        if self._state is State.OVER:
            return
        if self._read(FRAMES_AT_ONCE):
            self._read_soon()

    def _read_all(self) -> None:
        while self._read(FRAMES_AT_ONCE):
            pass

    def _read(self, most: int) -> bool:
        """Take the frames that are there, and hand on their news; whether there may be more."""
        num_read = 0
        while num_read < most and (incoming := self._launcher.receive()) is not None:
            num_read += 1
            self._take(incoming)
            if self._is_closed:
                return False
        events, self._news = self._news, []
        if events:
            self._deliver(coalesce(events) if num_read > 1 else events)
        self._flush()
        return num_read == most and not self._is_closed

    def _take(self, incoming: Incoming) -> None:
        if incoming.epoch != self._epoch or self._engine is None or self._is_condemned:
            return  # an engine that is gone, or going
        assert self._up is not None
        try:
            message = self._up.read(incoming)
            pulse = message if isinstance(message, Pulse) else None
            self._vigil.hear(self._clock(), pulse)
            if not isinstance(message, Pulse):
                self._hear(message)
        except (WireError, JournalError) as error:
            self._break_off(f"it broke the protocol: {error}")

    def _hear(self, message: Said) -> None:
        match message:
            case Hello():
                self._post(Start(self._arguments, logging.getLogger("octavo").getEffectiveLevel()))
            case Ready(facts):
                if self._state is not State.STARTING:
                    raise WireError("it was ready twice")
                self._be_ready(facts)
            case Failed(text):
                self._reason = text
            case News():
                self._take_news(message)
            case _:
                assert_never(message)

    def _take_news(self, news: News) -> None:
        now, is_trial_over = self._clock(), False
        for wire in news.events:
            entry = self._journal.at(wire.number)
            if entry is None:  # late news, which concern nobody
                continue
            event = self._journal.advance(entry, wire, now)
            self._news.append(event)
            if event.tokens:
                self.restarts.bear()
            if (event.tokens or event.finish_reason) and self._suspicion.acquit(entry):
                is_trial_over = True
                if event.finish_reason is None and not entry.is_aborted:
                    # It comes again with everybody else.
                    self._post(Drop((wire.number,)))
                    self._journal.withdraw(entry)
                    entry.lost_at = now
        if news.snapshot is not None:
            self._snapshot = news.snapshot.after(self._earlier)
        if is_trial_over:
            self._after_trial()

    def _after_trial(self) -> None:
        """The engine is empty now: the next trial, or everybody who waits."""
        if self._state is not State.READY or self._is_condemned:
            return
        accused = self._suspicion.next_trial()
        waiting = [entry for entry in self._journal if entry.number is None]
        self._add([accused] if accused is not None else waiting)

    # deaths and beginnings

    def _launch(self) -> None:
        self._epoch += 1
        self._reason, self._is_condemned = None, False
        self._vigil = Liveness(self._timing, self._clock(), self.restarts.patience())
        self._state = State.STARTING
        self._engine = self._launcher.launch(self._epoch)
        self._down, self._up = Downlink(self._engine, self._epoch), Uplink(self._epoch)
        if self._loop is not None:
            self._engine.watch(self._on_end)

    def _be_ready(self, facts: EngineFacts) -> None:
        if self._facts is not None and facts.vocabulary != self._facts.vocabulary:
            raise WireError("it has another vocabulary than its predecessor: the model was changed")
        self._facts = self._facts or facts
        self._state = State.READY
        self._vigil.ready(self._clock())
        if self._epoch > 1:
            log.warning("engine %d is ready; %d requests go on", self._epoch, len(self._journal))
        if self._is_paused:
            self._command("pause")
        self._after_trial()

    def _on_tick(self) -> None:
        loop = self._loop
        assert loop is not None
        self._vigil.look(self._clock())
        self._timers["tick"] = loop.call_later(TICK_SECONDS, self._on_tick)
        self._on_frames()
        self._on_end()
        if self._engine is None or self._is_condemned:
            return
        has_work = self._journal.num_submitted > 0 and not self._is_paused
        charge = self._vigil.charge(self._clock(), has_work)
        if charge is not None:
            self._break_off(charge)

    def _break_off(self, reason: str) -> None:
        """End an engine that does not do what it should; its death is then like any other."""
        engine = self._engine
        assert engine is not None
        self._reason, self._is_condemned = reason, True
        log.error("ending engine %d: %s", self._epoch, reason)
        engine.dump()
        if self._loop is None:
            engine.kill()
        else:
            self._timers["kill"] = self._loop.call_later(DUMP_SECONDS, engine.kill)

    def _on_end(self) -> None:
        engine = self._engine
        if engine is None or (ending := engine.ending()) is None or self._state is State.OVER:
            return
        self._read_all()  # what it said before it died is true
        if self._engine is engine:
            self._bury(engine, self._reason or ending)

    def _bury(self, engine: EngineProcess, reason: str) -> None:
        now, events = self._clock(), []
        numbers = engine.at_work()
        at_work = [entry for number in numbers if (entry := self._journal.at(number)) is not None]
        condemned = self._suspicion.death(at_work, engine.was_killed())
        self._journal.lose_engine(now)
        engine.close()
        self._engine = self._down = None
        self._earlier = self._snapshot
        for entry in self._journal:
            if entry is condemned:
                events.append(entry.last_event("error", _verdict(reason)))
            elif entry.is_aborted:
                events.append(entry.last_event("abort"))
            else:
                continue
            self._journal.close(entry)
            self._suspicion.forget(entry)
        log.error("engine %d ended: %s", self._epoch, reason)
        self.restarts.death(self._vigil.age(now))
        if condemned is not None:
            self.restarts.bear()
        self._begin_again(reason)
        if events:
            self._deliver(events)

    def _begin_again(self, reason: str) -> None:
        loop = self._loop
        assert loop is not None
        self._state = State.RESTING
        seconds = self.restarts.rest()
        if seconds is None:
            loop.call_soon(self._give_up, reason)
        elif seconds:
            self._timers["rest"] = loop.call_later(seconds, self._relaunch)
        else:
            self._relaunch()

    def _relaunch(self) -> None:
        try:
            self._launch()
        except OSError as error:  # no process to be had just now
            reason = f"no process could be started: {error}"
            log.error("%s", reason)
            self.restarts.death(0.0)
            self._begin_again(reason)

    def _give_up(self, reason: str) -> None:
        if self._state is State.OVER:
            return
        self._over = self.restarts.farewell(reason)
        self._close_now()
        self._died(EngineDeadError(self._over))


def _verdict(reason: str) -> str:
    return (
        "this request ended the engine each time it was tried, the last time while it ran alone: "
        f"{reason}. No other request was harmed; do not send it again"
    )
