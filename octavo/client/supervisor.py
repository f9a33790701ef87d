"""Keeps an engine's process running: launch → ready → (stop) → end → launch again, or give up.

    WAITING ── launch ──▶ STARTING ── it is ready ──▶ READY
       ▲                     │                          │
       │                     ├─ silent, slow, or wrong ─┴─▶ STOPPING
       │                     ▼                                 │
       └────────── its process has ended ◀─────────────────────┘

Each launch is an `EngineRun` with an epoch of its own. When its process has ended, the owner learns
what was in its last step, and the next launch follows at once, after a delay, or never
(`RestartPolicy`). After too many failures in a row, or `close`, the state is CLOSED for good.

All times are on the event loop's clock; an engine is judged only after all its frames were read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol, assert_never

from octavo.client.client import EngineStartError
from octavo.client.frames import FrameReader, FrameWriter
from octavo.client.launcher import EngineProcess, Incoming, Launcher
from octavo.client.liveness import TICK_SECONDS, Liveness
from octavo.client.restart_policy import RestartPolicy, Timing
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import (
    EngineFailed,
    EngineMessage,
    EngineReady,
    Heartbeat,
    ProcessStarted,
    StartEngine,
    StepOutput,
    ToEngine,
    WireError,
)

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0  # that another thread waits for the event loop to close the engine
DUMP_SECONDS = 0.2  # for the stacks to be logged before the process is killed
CLOSE_POLL_SECONDS = 0.05  # between checks that the event loop still runs
FRAMES_AT_ONCE = 64  # read before other callbacks of the event loop have a turn


class State(Enum):
    """The states of a supervised engine."""

    WAITING = auto()  # there is no process; the next one is started now or after a delay
    STARTING = auto()  # the process runs, and loads the model
    READY = auto()
    STOPPING = auto()  # the engine misbehaved and is being killed; its frames are ignored
    CLOSED = auto()  # closed or given up


_NEXT_STATES = {
    State.WAITING: {State.STARTING, State.CLOSED},
    State.STARTING: {State.READY, State.STOPPING, State.WAITING, State.CLOSED},
    State.READY: {State.STOPPING, State.WAITING, State.CLOSED},
    State.STOPPING: {State.WAITING, State.CLOSED},
    State.CLOSED: set[State](),
}


class Owner(Protocol):
    """The user of a supervised engine; a method may call the supervisor back."""

    def start_message(self) -> StartEngine:
        """Return the message from which the engine is built."""

    def has_work(self) -> bool:
        """Return whether the engine ought to be computing."""

    def on_ready(self, epoch: int) -> None:
        """Submit requests to a new engine."""

    def on_output(self, output: StepOutput) -> None:
        """Record a step's output; raise WireError if the engine must not be trusted any more."""

    def deliver(self, merge: bool) -> None:
        """Deliver recorded events to the callers, merged if they came in several frames."""

    def on_end(self, last_step: tuple[int, ...], was_killed: bool, reason: str) -> bool:
        """Prepare for the next engine; return whether a request was found that crashes engines."""

    def on_give_up(self, message: str) -> None:
        """Fail all callers, since no further engine is started."""


class EngineRun:
    """One engine from its launch to its end."""

    def __init__(self, epoch: int, process: EngineProcess, liveness: Liveness) -> None:
        self.epoch = epoch
        self.process = process
        self.liveness = liveness
        self.writer = FrameWriter(process, epoch)
        self.reader = FrameReader(epoch)
        self.failure: str | None = None  # why it ends, if that is known before its process ends
        self.is_of_model = False  # it ends because of the model's files


class Supervisor:
    """The current engine, its frames, its state and its restarts."""

    def __init__(
        self, owner: Owner, launcher: Launcher, timing: Timing, clock: Callable[[], float]
    ) -> None:
        self._owner = owner
        self.launcher = launcher
        self._timing = timing
        self._clock = clock
        self.state = State.WAITING
        self.run: EngineRun | None = None  # in STARTING, READY and STOPPING
        self.facts: EngineFacts | None = None  # of the first engine
        self.restarts = RestartPolicy(timing)
        self.loop: asyncio.AbstractEventLoop | None = None
        self.timers: dict[str, asyncio.Handle] = {}
        self._epoch = 0  # of the newest run

    # start and close

    def launch(self) -> None:
        """Start an engine's process; raise OSError if that is impossible at the moment."""
        self._epoch += 1
        process = self.launcher.launch(self._epoch)
        factor = self.restarts.step_timeout_factor()
        liveness = Liveness(self._timing, self._clock(), factor)
        self.run = EngineRun(self._epoch, process, liveness)
        self._enter(State.STARTING)
        if self.loop is not None:
            process.watch(self._on_exit)

    def wait_until_ready(self) -> None:
        """Block until the first engine is ready; raise EngineStartError if it fails."""
        run = self.run
        assert run is not None, "launch() comes first"
        while self.state is not State.READY:
            self.launcher.wait(0.05)
            exit_reason = run.process.exit_reason()
            self._read_all()
            if exit_reason is not None and not self.is_well():
                raise EngineStartError(
                    run.failure or f"the engine did not start: {exit_reason}",
                    is_of_model=run.is_of_model,
                )
            reason = run.liveness.overdue_reason(self._clock(), has_work=False)
            if reason is not None:
                raise EngineStartError(reason)

    def attach(self) -> None:
        """Attach to the running event loop, and supervise the engine in it."""
        self.loop = asyncio.get_running_loop()
        self._cancel_timers()  # of a loop that has ended
        self.launcher.attach(self._on_readable)
        if self.run is not None:
            self.run.liveness.restart_clocks(self._clock())
            self.run.process.watch(self._on_exit)
            if self.state is State.STOPPING:
                self.run.process.kill()
        elif self.state is State.WAITING:
            self._relaunch()
        self._on_tick()

    def close(self) -> None:
        """End the engine for good; safe to call twice, and from any thread.

        Another thread leaves it to the event loop, unless the loop is blocked or stops meanwhile.
        """
        loop = self.loop
        if loop is None or not loop.is_running() or asyncio._get_running_loop() is loop:
            self._close_now()
            return
        done = threading.Event()

        def close() -> None:
            try:
                self._close_now()
            finally:
                done.set()

        with contextlib.suppress(RuntimeError):  # the loop was closed in this moment
            loop.call_soon_threadsafe(close)
            deadline = time.monotonic() + CLOSE_SECONDS
            while loop.is_running() and time.monotonic() < deadline:
                if done.wait(CLOSE_POLL_SECONDS):
                    return
        self._close_now()  # which does nothing if the loop has closed the engine after all

    def _close_now(self) -> None:
        if self.state is State.CLOSED:
            return
        self._enter(State.CLOSED)
        self._cancel_timers()
        if self.run is not None:
            self.run.process.close()
            self.run = None
        self.launcher.close()

    def _cancel_timers(self) -> None:
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()

    def _enter(self, state: State) -> None:
        assert state in _NEXT_STATES[self.state], f"{self.state} → {state}"
        self.state = state

    def is_well(self) -> bool:
        """Return whether the engine is ready and has shown signs of life lately."""
        run = self.run
        is_ready = self.state is State.READY
        return run is not None and is_ready and run.liveness.is_fresh(self._clock())

    # frames to the engine

    def write(self, message: ToEngine) -> None:
        """Queue a message; raise WireError, and change nothing, if it cannot be encoded."""
        assert self.run is not None
        self.run.writer.write(message)

    def flush(self) -> None:
        """Send the queued messages, or as many as the socket accepts."""
        # Sending may consume the socket's signal that a frame has come, so read afterwards.
        if self.run is not None and self.run.writer.flush():
            self._read_soon()

    def note_work(self) -> None:
        """Note that the engine has work from now on; it could make no progress before."""
        if self.run is not None:
            self.run.liveness.note_work(self._clock())

    # frames from the engine

    def _read_soon(self) -> None:
        if self.loop is not None and "read" not in self.timers:
            self.timers["read"] = self.loop.call_soon(self._on_readable)

    def _on_readable(self) -> None:
        scheduled = self.timers.pop("read", None)
        if scheduled is not None:
            scheduled.cancel()
        if self.state is not State.CLOSED and self._read(FRAMES_AT_ONCE):
            self._read_soon()

    def _read_all(self) -> None:
        while self._read(FRAMES_AT_ONCE):
            pass

    def _read(self, limit: int) -> bool:
        """Handle frames that have come, and deliver events; return whether there may be more."""
        num_read = 0
        while num_read < limit and (incoming := self.launcher.receive()) is not None:
            num_read += 1
            self._take(incoming)
            if self.state is State.CLOSED:
                return False
        self._owner.deliver(merge=num_read > 1)
        self.flush()
        return num_read == limit and self.state is not State.CLOSED

    def _take(self, incoming: Incoming) -> None:
        run = self.run
        if run is None or run.epoch != incoming.epoch or self.state is State.STOPPING:
            return  # a late frame of an engine that has ended or is being ended
        try:
            message = run.reader.read(incoming)
            if isinstance(message, Heartbeat):
                run.liveness.note_frame(self._clock(), message)
            else:
                run.liveness.note_frame(self._clock(), None)
                self._handle(run, message)
        except WireError as error:
            self._stop(run, f"it broke the protocol: {error}")

    def _handle(self, run: EngineRun, message: EngineMessage) -> None:
        match message:
            case ProcessStarted():
                self.write(self._owner.start_message())
            case EngineReady(facts):
                if self.state is not State.STARTING:
                    raise WireError("it reported a second time that it is ready")
                self._on_ready(run, facts)
            case EngineFailed(text, is_of_model):
                run.failure, run.is_of_model = text, is_of_model
            case StepOutput():
                self._owner.on_output(message)
            case _:
                assert_never(message)

    # the life of an engine

    def _on_ready(self, run: EngineRun, facts: EngineFacts) -> None:
        if self.facts is not None and facts.vocabulary != self.facts.vocabulary:
            raise WireError(
                f"its vocabulary has {facts.vocabulary} tokens, and that of the engine before had "
                f"{self.facts.vocabulary}: the model's files were changed"
            )
        self.facts = self.facts or facts
        self._enter(State.READY)
        run.liveness.note_ready(self._clock())
        self._owner.on_ready(run.epoch)

    def _on_tick(self) -> None:
        assert self.loop is not None
        self.timers["tick"] = self.loop.call_later(TICK_SECONDS, self._on_tick)
        if self.run is not None:
            self.run.liveness.note_tick(self._clock())
        self._on_readable()
        self._on_exit()
        run = self.run
        if run is not None and self.state is not State.STOPPING:
            reason = run.liveness.overdue_reason(self._clock(), self._owner.has_work())
            if reason is not None:
                self._stop(run, reason)

    def _stop(self, run: EngineRun, reason: str) -> None:
        """Kill an engine that misbehaves, after it has logged its stacks."""
        run.failure = reason
        self._enter(State.STOPPING)
        log.error("ending engine %d: %s", run.epoch, reason)
        run.process.dump_stacks()
        if self.loop is None:
            run.process.kill()
        else:
            self.timers["kill"] = self.loop.call_later(DUMP_SECONDS, run.process.kill)

    def _on_exit(self) -> None:
        run = self.run
        if run is None or (exit_reason := run.process.exit_reason()) is None:
            return
        self._read_all()  # what it sent before it ended is valid
        if self.run is run:
            self._end(run, run.failure or exit_reason)

    def _end(self, run: EngineRun, reason: str) -> None:
        log.error("engine %d ended: %s", run.epoch, reason)
        self.run = None
        self._enter(State.WAITING)
        last_step, was_killed = run.process.last_step(), run.process.was_killed()
        run.process.close()
        is_cause_found = self._owner.on_end(last_step, was_killed, reason)
        self.restarts.note_end(run.liveness.seconds_ready(self._clock()))
        if is_cause_found:
            self.restarts.note_progress()
        self._restart(reason)
        self._owner.deliver(merge=False)

    def _restart(self, reason: str) -> None:
        """Launch the next engine at once or after a delay, or give up because of `reason`."""
        assert self.loop is not None
        delay = self.restarts.next_delay()
        if delay is None:
            self.loop.call_soon(self._give_up, reason)
        elif delay:
            self.timers["restart"] = self.loop.call_later(delay, self._relaunch)
        else:
            self._relaunch()

    def _relaunch(self) -> None:
        try:
            self.launch()
        except OSError as error:  # no process can be started at the moment
            reason = f"no process could be started: {error}"
            log.error("%s", reason)
            self.restarts.note_end(0.0)
            self._restart(reason)

    def _give_up(self, reason: str) -> None:
        if self.state is not State.CLOSED:
            self._close_now()
            self._owner.on_give_up(self.restarts.give_up_message(reason))
