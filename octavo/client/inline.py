"""Runs the engine in a thread of this process, and delivers its events to an event loop."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from octavo.client.client import Deliver, Died
from octavo.client.commands import COMMAND_SECONDS, CommandsInFlight, failed, replied
from octavo.client.errors import EngineDeadError
from octavo.client.restart_policy import Timing
from octavo.client.vitals import EngineVitals
from octavo.core.config import ConfigError
from octavo.core.engine import EngineCore
from octavo.core.request import Abort, Request
from octavo.core.sampling_params import LogitsProcessor
from octavo.core.snapshot import EngineSnapshot, take_load, take_snapshot
from octavo.engine.commands import NO_HANDLERS, carry_out
from octavo.engine.holds import Holds
from octavo.options.engine import EngineArguments
from octavo.wire.commands import NO_ENGINE, Command, Reply
from octavo.wire.facts import EngineFacts

if TYPE_CHECKING:
    from octavo.engine.ranks.group import ProcessGroup
    from octavo.engine.tensor_files import RequestFiles, TensorFiles
    from octavo.loader import ModelFiles
    from octavo.models.load import OpenedModel

log = logging.getLogger(__name__)

SNAPSHOT_SECONDS = 0.5
CLOSE_SECONDS = 5.0  # for the running step to end, where it is computed by several processes
POLL_SECONDS = 0.001  # an idle engine looks so often whether a file is ready
_CLOSED = "the engine is closed"
_Numbered = tuple[int, Command]


class InlineClient:
    """Implements `octavo.client.client.EngineClient`; an error in a step ends the engine."""

    def __init__(
        self,
        core: EngineCore,
        facts: EngineFacts,
        adapters: RequestFiles | None = None,
        files: TensorFiles | None = None,
        group: ProcessGroup | None = None,
    ) -> None:
        self._core: EngineCore | None = core
        self._facts = facts
        self._group = group  # the engine's other processes; None: there are none
        self._files = files  # None: the engine loads none
        self._holds = Holds([] if adapters is None else [adapters], None)
        # Requests, aborts and numbered commands; bounded by the callers: each adds n requests.
        self._inbox: deque[Request | Abort | _Numbered] = deque()
        self._commands = CommandsInFlight()
        # Guards the inbox, and the loop with its callbacks.
        self._wake = threading.Condition()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deliver: Deliver = lambda events: None
        self._died: Died = lambda error: None
        self._is_closing = False
        self._snapshot = EngineSnapshot(num_blocks=facts.num_blocks)
        self._load = self._snapshot.load
        self.vitals = EngineVitals(time.monotonic())
        self.members = (self,)
        self._thread = threading.Thread(target=self._run, name="octavo engine", daemon=True)

    @property
    def facts(self) -> EngineFacts:
        return self._facts

    def attach(self, deliver: Deliver, died: Died) -> None:
        with self._wake:
            self._deliver, self._died = deliver, died
            self._loop = asyncio.get_running_loop()
            self._commands.forget_other_loops()
            if not self._thread.is_alive():
                # A step must not still run when the interpreter ends: the process would abort.
                atexit.register(self._exit, os.getpid())
                self._thread.start()

    def watch(self, changed: Callable[[], None]) -> None:
        """Accept the callback, which is never called: the engine ends with its client."""

    def send(self, events: Sequence[Request | Abort]) -> None:
        if events:
            with self._wake:
                self._inbox.extend(events)
                self._wake.notify()

    def command(self, command: Command, seconds: float = COMMAND_SECONDS) -> asyncio.Future[Reply]:
        with self._wake:
            if self._is_closing:
                return replied(failed(NO_ENGINE, _CLOSED))
            return self._commands.send(command, seconds, self._write)

    def _write(self, number: int, command: Command) -> None:
        self._inbox.append((number, command))
        self._wake.notify()

    def snapshot(self) -> EngineSnapshot:
        load = self._load
        waiting = load.num_waiting + sum(isinstance(each, Request) for each in tuple(self._inbox))
        return replace(self._snapshot, load=load._replace(num_waiting=waiting))

    def request_id(self, name: str) -> str | None:
        return name

    @property
    def is_ready(self) -> bool:
        return not self._is_closing

    @property
    def is_closed(self) -> bool:
        return self._is_closing

    def is_well(self) -> bool:
        return not self._is_closing and self._thread.is_alive()

    @property
    def is_sleeping(self) -> bool:
        return False

    def restart(self, index: int) -> None:
        self.sleep()

    def sleep(self) -> None:
        raise ConfigError(
            "the engine runs in this process and cannot end without it; use engine='process'"
        )

    def wake_up(self) -> None:
        """Return at once, since the engine never sleeps."""

    def close(self) -> None:
        with self._wake:
            self._is_closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._end_thread()
        self._call_soon(self._commands.fail_all, _CLOSED)
        atexit.unregister(self._exit)
        self._core = self._group = None  # frees the weights and the cache

    def _end_thread(self) -> None:
        """Wait for the running step, which is given up if another process does not compute it."""
        group = self._group
        self._thread.join(None if group is None else CLOSE_SECONDS)
        if group is not None and self._thread.is_alive():
            log.warning("the running step is given up: its processes take too long to end it")
            group.give_up(_CLOSED)
            self._thread.join()
            group.close()  # which ends them, also one that is stopped

    def _exit(self, process: int) -> None:
        """Close at the end of the thread's process; in one that was forked there is no thread."""
        if os.getpid() == process:
            self.close()

    def _run(self) -> None:
        core = self._core
        assert core is not None
        try:
            self._work(core)
        except BaseException as error:  # the thread's boundary: callers must get the error
            if self._is_closing:  # its last step was given up
                return
            log.exception("the engine's thread ended because of an error")
            dead = EngineDeadError(
                f"the engine has stopped after an error: {type(error).__name__}: {error}"
            )
            dead.__cause__ = error
            with self._wake:
                self._is_closing = True
            self._call_soon(self._commands.fail_all, str(dead))
            self._call_soon(self._died, dead)

    def _work(self, core: EngineCore) -> None:
        snapshot_at, num_seen = 0.0, 0
        self._snapshot = take_snapshot(core, time.monotonic())
        while True:
            with self._wake:
                while not (self._inbox or self._is_closing or core.has_work):
                    seconds = core.seconds_to_deadline()
                    if seconds <= 0.0:
                        break
                    if self._awaits_files:
                        self._wake.wait(min(seconds, POLL_SECONDS))
                        break
                    self._wake.wait(min(seconds, threading.TIMEOUT_MAX))
                if self._is_closing:
                    return
                inbox, self._inbox = self._inbox, deque()
            self._take_in(core, inbox)
            events = core.step()
            self._holds.leave(events)
            now = time.monotonic()
            num_computed = core.scheduler.stats.num_tokens
            if num_computed > num_seen:  # some steps only free what has ended
                num_seen = num_computed
                self.vitals.note_step(now)
            self._load = take_load(core)
            if now >= snapshot_at or not self._load.num_running:  # the last before its events
                snapshot_at = now + SNAPSHOT_SECONDS
                self._snapshot = take_snapshot(core, now)
            if events and not self._call_soon(self._deliver, events):
                for name in list(core.scheduler.sequences):
                    core.on_event(Abort(name))

    @property
    def _awaits_files(self) -> bool:
        """True if a file is being loaded, or a request waits for one."""
        return bool(self._holds.num_held or (self._files is not None and self._files.num_loading))

    def _take_in(self, core: EngineCore, inbox: Iterable[Request | Abort | _Numbered]) -> None:
        """Pass on to the core what has come, and what has become ready."""
        handlers = NO_HANDLERS if self._files is None else self._files.handlers
        for event in inbox:
            match event:
                case Request():
                    self._holds.add(core, event)
                case Abort():
                    core.on_event(event)
                case (number, command):
                    carry_out(core, command, partial(self._settle_soon, number), handlers)
        if self._files is not None and self._files.num_loading:
            self._files.take()
        self._holds.take(core)

    def _settle_soon(self, number: int, reply: Reply) -> None:
        self._call_soon(self._commands.settle, number, reply)

    def _call_soon(self, call: Callable[..., None], *arguments: object) -> bool:
        """Call something in the loop; return False if that has ended, with all its callers."""
        with self._wake:
            if self._loop is None:
                return False
            try:
                self._loop.call_soon_threadsafe(call, *arguments)
            except RuntimeError:  # the loop is closed, perhaps only just now
                return False
        return True


def start(
    arguments: EngineArguments,
    timing: Timing | None,
    processors: Mapping[str, LogitsProcessor] | None,
    meanwhile: Callable[[OpenedModel, ModelFiles], None] | None = None,
) -> InlineClient:
    """Build the engine that the arguments describe; `timing` concerns processes alone.

    `meanwhile` is called with the opened model while its weights load.
    """
    if arguments.needs_processes:
        names = "data_parallel_size", "data_parallel_backend", "distributed_executor_backend"
        values = {name: getattr(arguments, name) for name in names}
        given = [f"{name}={value}" for name, value in values.items() if value not in (1, "mp")]
        raise ConfigError(
            f"{' and '.join(given)}: such engines are processes of their own; use "
            "engine='process', or leave it out"
        )
    # They import a backend, and what reads checkpoints.
    from octavo.engine.build import build_engine
    from octavo.engine.own_files import own_files

    engine = build_engine(arguments, processors=processors, meanwhile=meanwhile)
    files = own_files(engine, arguments.adapter_directory)
    return InlineClient(engine.core, engine.facts, engine.adapters, files, engine.ranks)
