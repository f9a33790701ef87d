"""The client of an engine in its own process, which loses no request when the engine ends.

`Supervisor` keeps an engine running. Every open request is in the journal; when an engine has
ended, its requests are submitted to the next one as prompt + emitted tokens, and those in the
fatal step become suspect (`Quarantine`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from octavo.client.client import Deliver, Died, EngineDeadError
from octavo.client.coalesce import coalesce
from octavo.client.commands import COMMAND_SECONDS, CommandsInFlight, failed, replied
from octavo.client.frames import in_batches
from octavo.client.journal import Entry, Journal
from octavo.client.launcher import Launcher, ProcessLauncher
from octavo.client.quarantine import Quarantine
from octavo.client.restart_policy import Timing
from octavo.client.supervisor import PUT_TO_SLEEP, State, Supervisor
from octavo.client.vitals import EngineVitals
from octavo.core.config import ConfigError
from octavo.core.request import Abort, Request, TokenEvent
from octavo.core.snapshot import EngineLoad, EngineSnapshot
from octavo.observe.log import flags_in_use
from octavo.options.engine import EngineArguments
from octavo.wire.commands import NO_ENGINE, Command, Pause, Reply, Resume
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import (
    AbortRequests,
    AddRequests,
    CommandReply,
    EngineCommand,
    StartEngine,
    StepOutput,
    WireError,
    pack,
)

log = logging.getLogger(__name__)

CACHE_KEY_BYTES = 32


class ProcessClient:
    """Implements `octavo.client.client.EngineClient` once `start` has returned."""

    def __init__(
        self,
        arguments: EngineArguments,
        launcher: Launcher,
        timing: Timing | None = None,
        clock: Callable[[], float] = time.monotonic,
        cache_key: bytes | None = None,
    ) -> None:
        self._arguments = arguments
        # Drawn here, so that equal digests mean equal content in all engines of this front end.
        self._cache_key = cache_key or secrets.token_bytes(CACHE_KEY_BYTES)
        self._clock = clock
        self.supervisor = Supervisor(self, launcher, timing or Timing(), clock)
        self._journal = Journal()
        self._quarantine = Quarantine()
        self._commands = CommandsInFlight()
        self._snapshot = EngineSnapshot()  # of all engines so far …
        self._earlier = EngineSnapshot()  # … and of those before the current one
        self._load = EngineLoad()
        self.vitals = EngineVitals(clock())
        self._is_paused = False
        self._deliver: Deliver = lambda events: None
        self._died: Died = lambda error: None
        self._undelivered: list[TokenEvent] = []  # recorded in the journal already
        self._closed_reason = "the engine is closed"

    def launch(self) -> None:
        """Start the first engine's process; `start` then waits for the engine."""
        try:
            self.supervisor.launch()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Wait until the first engine is ready; raise EngineStartError if it fails.

        Call it outside of any event loop: it takes as long as loading the model.
        """
        try:
            if self.supervisor.run is None:
                self.supervisor.launch()
            self.supervisor.wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def facts(self) -> EngineFacts:
        assert self.supervisor.facts is not None, "start() comes first"
        return self.supervisor.facts

    def attach(self, deliver: Deliver, died: Died) -> None:
        self._deliver, self._died = deliver, died
        self._commands.forget_other_loops()
        self.supervisor.attach()

    def close(self) -> None:
        self.supervisor.close()
        loop = self.supervisor.loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, with all its callers
                loop.call_soon_threadsafe(self._commands.fail_all, self._closed_reason)

    def is_well(self) -> bool:
        return self.supervisor.is_well()

    @property
    def is_sleeping(self) -> bool:
        return self.supervisor.is_sleeping

    def sleep(self) -> None:
        self.supervisor.sleep()

    def wake_up(self) -> None:
        self.supervisor.wake_up()

    def snapshot(self) -> EngineSnapshot:
        # Requests that the engine has not read yet, in the middle of a step, wait too.
        num_waiting = max(0, len(self._journal) - self._load.num_running)
        return replace(self._snapshot, load=self._load._replace(num_waiting=num_waiting))

    # requests and commands to the engine

    def command(self, command: Command, seconds: float = COMMAND_SECONDS) -> asyncio.Future[Reply]:
        if isinstance(command, Pause | Resume):
            self._is_paused = isinstance(command, Pause)
            self.supervisor.note_work()
        if self.supervisor.state is State.CLOSED:
            return replied(failed(NO_ENGINE, self._closed_reason))
        if self.supervisor.state is not State.READY:
            return replied(failed(NO_ENGINE, "there is no engine that is ready at the moment"))
        reply = self._commands.send(command, seconds, self._write_command)
        self.supervisor.flush()
        return reply

    def _write_command(self, number: int, command: Command) -> None:
        self.supervisor.write(EngineCommand(number, command.name, pack(command)))

    def send(self, events: Sequence[Request | Abort]) -> None:
        if self.supervisor.state is State.CLOSED:
            if any(isinstance(event, Request) for event in events):
                raise EngineDeadError(self._closed_reason)
            return
        opened: list[Entry] = []
        for event in events:
            if isinstance(event, Request):
                opened.append(self._journal.open(event))
                continue
            self._submit_now_or_later(opened)
            opened = []
            self._abort(event.request_id)
        self._submit_now_or_later(opened)
        self.supervisor.flush()

    def _submit_now_or_later(self, entries: Iterable[Entry]) -> None:
        if self.supervisor.state is State.READY and not self._quarantine.is_active:
            self._submit(entries)
            return
        now = self._clock()
        for entry in entries:
            entry.timeline.wait(now)

    def _submit_waiting(self) -> None:
        """Submit the next suspect alone or, without one, all that wait; the engine is empty."""
        if self.supervisor.state is not State.READY:
            return
        suspect = self._quarantine.isolate()
        waiting = [entry for entry in self._journal if entry.number is None]
        self._submit([suspect] if suspect is not None else waiting)

    def _submit(self, entries: Iterable[Entry]) -> None:
        now, wires = self._clock(), []
        if not self._journal.num_submitted:
            self.supervisor.note_work()
        for entry in entries:
            try:
                wires.append(self._journal.submit(entry, now))
            except WireError as error:
                self._refuse(entry, error)
        for batch in in_batches(wires):
            self._add(batch)

    def _add(self, message: AddRequests) -> None:
        try:
            self.supervisor.write(message)
        except WireError as error:
            if len(message.requests) > 1:  # one of them is too large: find it
                for wire in message.requests:
                    self._add(AddRequests((wire,)))
                return
            entry = self._journal.find_number(message.requests[0].number)
            assert entry is not None
            self._refuse(entry, error)

    def _refuse(self, entry: Entry, error: WireError) -> None:
        self._finish(entry, entry.last_event("refused", str(error)))

    def _abort(self, name: str) -> None:
        entry = self._journal.find(name)
        if entry is None or entry.is_abort_requested:
            return
        entry.is_abort_requested = True
        if entry.number is None:
            self._finish(entry, entry.last_event("abort"))
        else:
            self.supervisor.write(AbortRequests((entry.number,)))

    def _finish(self, entry: Entry, event: TokenEvent) -> None:
        """End a request that no engine has; deliver its last event after the current call."""
        self._journal.close(entry)
        if self._quarantine.forget(entry):
            self._submit_waiting()
        loop = self.supervisor.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon(self._deliver, [event])

    # calls of the supervisor; see `octavo.client.supervisor.Owner`

    def start_message(self, like: EngineFacts | None) -> StartEngine:
        arguments = self._arguments
        if like is not None:  # the size that was found when the memory was free
            arguments = replace(
                arguments,
                max_model_len=like.max_model_len,
                num_gpu_blocks_override=like.num_blocks,
            )
        facts = self.supervisor.facts
        if facts is not None and facts.accumulation_order:  # open streams continue with equal bits
            arguments = replace(arguments, accumulation_order=facts.accumulation_order)
        level = logging.getLogger("octavo").getEffectiveLevel()
        return StartEngine(
            pack(arguments), level, self._cache_key, flags_in_use(), is_first=facts is None
        )

    def wants_spare(self) -> bool:
        return self._arguments.spare_engine

    def has_work(self) -> bool:
        return self._journal.num_submitted > 0 and not self._is_paused

    def on_ready(self, epoch: int) -> None:
        self.vitals.note_ready(self._clock())
        if epoch > 1:
            log.warning("engine %d is ready; requests that continue: %d", epoch, len(self._journal))
        if self._is_paused:
            self._commands.send(Pause(), COMMAND_SECONDS, self._write_command)
        self._submit_waiting()

    def on_output(self, output: StepOutput) -> None:
        now, is_isolation_over = self._clock(), False
        for wire in output.events:
            entry = self._journal.find_number(wire.number)
            if entry is None:  # a late event of a request that has ended or was withdrawn
                continue
            event = self._journal.advance(entry, wire)
            self._undelivered.append(event)
            if event.tokens:
                self.supervisor.restarts.note_progress()
            if (event.tokens or event.finish_reason) and self._quarantine.clear(entry):
                is_isolation_over = True
                if event.finish_reason is None and not entry.is_abort_requested:
                    # Withdraw it, to submit it again in its order among the others.
                    self.supervisor.write(AbortRequests((wire.number,)))
                    self._journal.withdraw(entry)
                    entry.lose(now)
        self._load = output.load
        if output.events:
            self.vitals.note_step(now)
        if output.snapshot is not None:
            self.vitals.note_steps(now, output.snapshot.num_steps)
            self._snapshot = output.snapshot.after(self._earlier)
        if is_isolation_over:
            self._submit_waiting()

    def on_reply(self, reply: CommandReply) -> None:
        self._commands.take(reply)

    def deliver(self, merge: bool) -> None:
        events, self._undelivered = self._undelivered, []
        if events:
            self._deliver(coalesce(events) if merge else events)

    def on_end(self, last_step: tuple[int, ...], was_killed: bool, reason: str) -> bool:
        self._earlier = self._snapshot
        self.vitals.note_end(self._clock(), is_death=reason != PUT_TO_SLEEP)
        self._commands.fail_all(f"the engine ended before it replied: {reason}")
        self._load = EngineLoad(num_free_blocks=self._snapshot.num_blocks - 1)
        found = map(self._journal.find_number, last_step)
        suspects = [entry for entry in found if entry is not None]
        culprit = self._quarantine.suspect(suspects, was_killed)
        self._journal.lose_engine(self._clock())
        for entry in self._journal:
            if entry is culprit:
                event = entry.last_event("error", _crash_message(reason))
            elif entry.is_abort_requested:
                event = entry.last_event("abort")
            else:
                continue
            self._undelivered.append(event)
            self._journal.close(entry)
            self._quarantine.forget(entry)
        return culprit is not None

    def on_give_up(self, message: str) -> None:
        self._closed_reason = message
        self._died(EngineDeadError(message))


def launch_engine(arguments: EngineArguments, timing: Timing | None = None) -> ProcessClient:
    """Start an engine's process; return its client, whose `start` waits until it is ready.

    Nothing that only the front end needs is imported for this, so that the process can do its own
    imports at the same time.
    """
    if not sys.platform.startswith("linux"):
        raise ConfigError("engine='process' needs Linux; use engine='inline'")
    client = ProcessClient(arguments, ProcessLauncher(), timing)
    client.launch()
    return client


def _crash_message(reason: str) -> str:
    return (
        "this request ended the engine each time it was tried, the last time while it ran alone: "
        f"{reason}. No other request was harmed; do not send it again"
    )
