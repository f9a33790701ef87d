"""Keeps an engine's process running: launch → ready → (stop) → end → launch again, or give up.

    WAITING ── launch ──▶ STARTING ── it is ready ──▶ READY
       ▲                     │                          │
       │                     ├─ silent, slow, or wrong ─┴─▶ STOPPING
       │                     ▼                                 │
       └────────── its process has ended ◀─────────────────────┘

Each launch is an `EngineRun` with an epoch of its own. When its process has ended, the owner learns
what was in its last step, and the next launch follows at once, after a delay, or never
(`RestartPolicy`). After too many failures in a row, or `close`, the state is CLOSED for good. A
spare engine that stands by (`octavo.client.spare`) takes the place of the next launch.

All times are on the event loop's clock; an engine is judged only after all its frames were read.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol, assert_never

from octavo.client.engine_run import NEXT_STATES, EngineRun, State
from octavo.client.errors import EngineStartError
from octavo.client.exit_reason import name_of
from octavo.client.launcher import Incoming, Launcher
from octavo.client.liveness import TICK_SECONDS, Liveness
from octavo.client.restart_policy import RestartPolicy, Timing
from octavo.client.spare import Spare
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import (
    CacheChanges,
    CommandReply,
    EngineFailed,
    EngineMessage,
    EngineReady,
    ProcessStarted,
    StartEngine,
    StepOutput,
    ToEngine,
    WireError,
)

log = logging.getLogger(__name__)

CLOSE_SECONDS = 5.0  # that another thread waits for the event loop to close the engine
DUMP_SECONDS = 0.2  # for the stacks to be logged before the process is killed
ABANDON_SECONDS = 10.0  # for a killed process to end; it may wait in the kernel for a disk
CLOSE_POLL_SECONDS = 0.05  # between checks that the event loop still runs
PUT_TO_SLEEP = "it was put to sleep"
RESTARTED = "it was ended to be restarted"
WANTED = (PUT_TO_SLEEP, RESTARTED)  # ends for which no request is to blame
FRAMES_AT_ONCE = 64  # read before other callbacks of the event loop have a turn


class Owner(Protocol):
    """The user of a supervised engine; a method may call the supervisor back."""

    def start_message(self, like: EngineFacts | None) -> StartEngine:
        """Return the message from which an engine is built, of the same size as another."""

    def wants_spare(self) -> bool:
        """Return whether a spare engine is to stand by."""

    def has_work(self) -> bool:
        """Return whether the engine ought to be computing."""

    def on_ready(self, epoch: int) -> None:
        """Submit requests to a new engine."""

    def on_output(self, output: StepOutput) -> None:
        """Record a step's output; raise WireError if the engine must not be trusted any more."""

    def on_reply(self, reply: CommandReply) -> None:
        """Take the reply to a command; raise WireError if no such command was sent."""

    def on_cache_changes(self, changes: CacheChanges) -> None:
        """Take what has changed in the prefix cache; raise WireError if it is not followed."""

    def deliver(self, merge: bool) -> None:
        """Deliver recorded events to the callers, merged if they came in several frames."""

    def on_end(self, last_step: tuple[int, ...], was_killed: bool, reason: str) -> bool:
        """Prepare for the next engine; return whether a request was found that crashes engines."""

    def on_give_up(self, message: str) -> None:
        """Fail all callers, since no further engine is started."""


class Supervisor:
    """The current engine, its frames, its state and its restarts."""

    def __init__(
        self,
        owner: Owner,
        launcher: Launcher,
        timing: Timing,
        clock: Callable[[], float],
        index: int = 0,  # among the engines of its client
        model: str = "",  # for the log, where there are engines of several models
    ) -> None:
        self._owner = owner
        self._index, self._model = index, model
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
        self._wants_sleep = False
        self._newest_facts: EngineFacts | None = None  # of the last engine that became ready
        self.spare = Spare(timing, clock, self._start_message_of_spare, self._check_model)

    # start and close

    def launch(self) -> None:
        """Start an engine's process; raise OSError if that is impossible at the moment."""
        self.run = self._launch_run()
        self._enter(State.STARTING)
        if self.loop is not None:
            self.run.process.watch(self._on_exit)

    def _launch_run(self) -> EngineRun:
        self._epoch += 1
        process = self.launcher.launch(self._epoch)
        return EngineRun(
            name_of(self._index, self._epoch, self._model),
            *(self._epoch, process, self._new_liveness()),
        )

    def _new_liveness(self) -> Liveness:
        return Liveness(self._timing, self._clock(), self.restarts.step_timeout_factor())

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
                    is_of_settings=run.is_of_settings,
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
        self.spare.attach(self._on_exit)
        if self.state is State.READY:
            self._want_spare(self._timing.spare_delay_seconds)
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
        self.spare.close()
        self.launcher.close()

    def _cancel_timers(self) -> None:
        for timer in self.timers.values():
            timer.cancel()
        self.timers.clear()

    def _enter(self, state: State) -> None:
        assert state in NEXT_STATES[self.state], f"{self.state} → {state}"
        self.state = state

    def is_well(self) -> bool:
        """Return whether the engine is ready and has shown signs of life lately."""
        run = self.run
        is_ready = self.state is State.READY
        return run is not None and is_ready and run.liveness.is_fresh(self._clock())

    @property
    def is_sleeping(self) -> bool:
        """True if there is no engine until `wake_up`."""
        return self.state is State.SLEEPING

    def sleep(self) -> None:
        """End the engine and its spare; start no other until `wake_up`."""
        if self._wants_sleep or self.state is State.CLOSED:
            return
        self._wants_sleep = True
        self.spare.close()
        for name in ("restart", "spare"):
            if (timer := self.timers.pop(name, None)) is not None:
                timer.cancel()
        if self.state is State.WAITING:
            self._enter(State.SLEEPING)
        elif self.run is not None:
            self.run.failure = PUT_TO_SLEEP
            self.run.process.kill()

    def restart(self) -> None:
        """End the engine if it runs; the next one follows at once."""
        if self.run is not None and self.state is State.READY and self.run.failure is None:
            self.run.failure = RESTARTED
            self.run.process.kill()

    def wake_up(self) -> None:
        """Start an engine after `sleep`."""
        if not self._wants_sleep:
            return
        self._wants_sleep = False
        if self.state is State.SLEEPING:  # else the last engine has not ended yet
            self._enter(State.WAITING)
            self._relaunch()

    # frames to the engine

    def write(self, message: ToEngine) -> None:
        """Queue a message; raise WireError, and change nothing, if it cannot be encoded."""
        assert self.run is not None
        self.run.writer.write(message)

    def flush(self) -> None:
        """Send the queued messages, or as many as the socket accepts."""
        # Sending may consume the socket's signal that a frame has come, so read afterwards.
        runs = [run for run in (self.run, self.spare.run) if run is not None]
        if sum(run.writer.flush() for run in runs):
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
        if self.spare.take(incoming):
            return
        run = self.run
        if run is None or run.epoch != incoming.epoch or self.state is State.STOPPING:
            return  # a late frame of an engine that has ended or is being ended
        try:
            message = run.read(incoming, self._clock())
            if message is not None:
                self._handle(run, message)
        except WireError as error:
            self._stop(run, f"it broke the protocol: {error}")

    def _handle(self, run: EngineRun, message: EngineMessage) -> None:
        match message:
            case ProcessStarted():
                self.write(self._owner.start_message(None))
            case EngineReady(facts):
                if self.state is not State.STARTING:
                    raise WireError("it reported a second time that it is ready")
                self._on_ready(run, facts)
            case EngineFailed():
                run.failure = message.text
                run.is_of_model, run.is_of_settings = message.is_of_model, message.is_of_settings
            case StepOutput():
                self._owner.on_output(message)
            case CommandReply():
                self._owner.on_reply(message)
            case CacheChanges():
                self._owner.on_cache_changes(message)
            case _:
                assert_never(message)

    # the life of an engine

    def _on_ready(self, run: EngineRun, facts: EngineFacts) -> None:
        self._check_model(facts)
        self.facts = self.facts or facts
        self._newest_facts = facts
        self._enter(State.READY)
        run.liveness.note_ready(self._clock())
        self._owner.on_ready(run.epoch)
        self._want_spare(self._timing.spare_delay_seconds)

    def _check_model(self, facts: EngineFacts) -> None:
        """Refuse an engine that has loaded another model than the first one."""
        if self.facts is not None and facts.vocabulary != self.facts.vocabulary:
            raise WireError(
                f"its vocabulary has {facts.vocabulary} tokens, and that of the engine before had "
                f"{self.facts.vocabulary}: the model's files were changed"
            )

    def _on_tick(self) -> None:
        assert self.loop is not None
        self.timers["tick"] = self.loop.call_later(TICK_SECONDS, self._on_tick)
        if self.run is not None:
            self.run.liveness.note_tick(self._clock())
        self._on_readable()
        self._on_exit()
        self.spare.check_liveness()
        run = self.run
        if run is not None and self.state is not State.STOPPING:
            reason = run.liveness.overdue_reason(self._clock(), self._owner.has_work())
            if reason is not None:
                self._stop(run, reason)

    def _stop(self, run: EngineRun, reason: str) -> None:
        """Kill an engine that misbehaves, after it has logged its stacks."""
        run.failure = reason
        self._enter(State.STOPPING)
        log.error("ending engine %s: %s", run.name, reason)
        run.process.dump_stacks()
        if self.loop is None:
            run.process.kill()
        else:
            later = self.loop.call_later
            self.timers["kill"] = later(DUMP_SECONDS, run.process.kill)
            seconds = DUMP_SECONDS + ABANDON_SECONDS
            self.timers["abandon"] = later(seconds, self._abandon, run, reason)

    def _abandon(self, run: EngineRun, reason: str) -> None:
        """Leave behind an engine whose process does not end although it was killed."""
        if self.run is run and run.process.exit_reason() is None:
            log.error(
                "the process of engine %s does not end %.0f s after it was killed: it waits in the "
                "kernel, perhaps for a disk that does not answer; it is left behind",
                run.name,
                ABANDON_SECONDS,
            )
            self._end(run, reason)

    def _on_exit(self) -> None:
        self._replace_ended_spare()
        run = self.run
        if run is None or run.exit_reason() is None:
            return
        self._read_all()  # what it sent before it ended is valid
        if self.run is run:
            self._end(run, run.exit_reason() or "")

    def _end(self, run: EngineRun, reason: str) -> None:
        is_wanted = reason in WANTED
        log.log(logging.INFO if is_wanted else logging.ERROR, "engine %s: %s", run.name, reason)
        self.run = None
        if (timer := self.timers.pop("abandon", None)) is not None:
            timer.cancel()
        self._enter(State.WAITING)
        last_step, was_killed = run.process.last_step(), run.process.was_killed()
        if is_wanted:  # no request is to blame
            last_step = ()
        run.process.close()
        is_cause_found = self._owner.on_end(last_step, was_killed, reason)
        if not is_wanted:
            self.restarts.note_end(run.liveness.seconds_ready(self._clock()))
        if is_cause_found:
            self.restarts.note_progress()
        if self._wants_sleep:
            self._enter(State.SLEEPING)
        else:
            self._restart(reason)
        self._owner.deliver(merge=False)

    def _restart(self, reason: str) -> None:
        """Launch the next engine at once or after a delay, or give up because of `reason`."""
        assert self.loop is not None
        delay = self.restarts.next_delay()
        if delay is None:
            self.loop.call_soon(self._give_up, reason)
        elif delay and not self.spare.is_usable:
            self.timers["restart"] = self.loop.call_later(delay, self._relaunch)
        else:
            self._relaunch()

    def _relaunch(self) -> None:
        spare = self.spare.release()
        if spare is not None:
            self._take_over(*spare)
            return
        try:
            self.launch()
        except OSError as error:  # no process can be started at the moment
            reason = f"no process could be started: {error}"
            log.error("%s", reason)
            self.restarts.note_end(0.0)
            self._restart(reason)

    # the spare engine

    def _take_over(self, run: EngineRun, facts: EngineFacts | None) -> None:
        """Continue with the spare engine, which is loaded or (without facts) still loading."""
        self.run = run
        self._enter(State.STARTING)
        run.process.watch(self._on_exit)
        run.liveness = self._new_liveness()
        if facts is not None:
            self._on_ready(run, facts)
            self.flush()

    def _want_spare(self, delay: float) -> None:
        """Launch a spare engine after a delay, in which the requests of an ended one continue."""
        if self._owner.wants_spare() and self.loop is not None and self.spare.run is None:
            if "spare" in self.timers:
                self.timers["spare"].cancel()
            self.timers["spare"] = self.loop.call_later(delay, self._launch_spare)

    def _launch_spare(self) -> None:
        if self.state is not State.READY or self.spare.run is not None:
            return  # the next engine that is ready asks for one again
        try:
            self.spare.begin(self._launch_run(), self._on_exit)
        except OSError as error:
            log.warning("no spare engine could be started: %s", error)
            self._want_spare(self._timing.max_restart_delay_seconds)

    def _replace_ended_spare(self) -> None:
        if self.spare.has_ended():
            self._read_all()  # it may have said why
        delay = self.spare.forget_ended()
        if delay is not None:
            self._want_spare(delay)

    def _start_message_of_spare(self) -> StartEngine:
        return self._owner.start_message(self._newest_facts)

    def _give_up(self, reason: str) -> None:
        if self.state is not State.CLOSED:
            self._close_now()
            self._owner.on_give_up(self.restarts.give_up_message(reason))
