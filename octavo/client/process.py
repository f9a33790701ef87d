"""Engines in processes of their own, which are started again when they end.

A `Supervisor` keeps each running. What it computes belongs to its user; see `octavo.client.engine`.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from octavo.client.cache_events.publisher import CachePublisher, open_publishers
from octavo.client.commands import COMMAND_SECONDS, CommandsInFlight, failed, replied
from octavo.client.engine import EngineUser
from octavo.client.engine_run import State
from octavo.client.errors import EngineStartError
from octavo.client.journal.client import JournalClient
from octavo.client.launcher import Launcher, ProcessLauncher
from octavo.client.processors import divided
from octavo.client.restart_policy import Timing
from octavo.client.supervisor import WANTED, Supervisor
from octavo.client.vitals import EngineVitals
from octavo.core.config import ConfigError
from octavo.core.sampling_params import LogitsProcessor
from octavo.core.snapshot import EngineLoad, EngineSnapshot
from octavo.observe.log import flags_in_use, form_in_use, level_in_use
from octavo.options.engine import EngineArguments
from octavo.wire.commands import NO_ENGINE, Command, Pause, Reply, Resume, SetLogLevel
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import (
    AbortRequests,
    AddRequests,
    CacheChanges,
    CommandReply,
    EngineCommand,
    StartEngine,
    StepOutput,
    WireError,
    pack,
)

CACHE_KEY_BYTES = 32


class ProcessEngine:
    """Implements `octavo.client.engine.Engine` once `start` has returned."""

    user: EngineUser

    def __init__(
        self,
        arguments: EngineArguments,
        launcher: Launcher,
        timing: Timing | None,
        clock: Callable[[], float],
        cache_key: bytes,  # the same for all engines of a client
        index: int = 0,  # its number among the engines of all servers
        publisher: CachePublisher | None = None,  # None: its prefix cache is not followed
        model: str = "",  # for the log, where there are engines of several models
    ) -> None:
        self._arguments = arguments
        self._publisher = publisher
        self._cache_key = cache_key
        self._clock = clock
        self.supervisor = Supervisor(self, launcher, timing or Timing(), clock, index, model)
        self._like: EngineFacts | None = None  # the engine of whose size it is
        self._commands = CommandsInFlight()
        self.totals = EngineSnapshot()
        self._earlier = EngineSnapshot()  # of the engines before the current one
        self.load = EngineLoad()
        self.vitals = EngineVitals(clock())
        self._is_paused = False
        self._start_level = 0  # of the log, in the newest start message
        self.closed_reason = "the engine is closed"

    def use(self, user: EngineUser) -> None:
        self.user = user

    def follow(self, facts: EngineFacts) -> None:
        """Take the size of another engine of the set, and compute with equal bits."""
        self._like = facts
        self.supervisor.facts = facts

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

    def attach(self) -> None:
        self._commands.forget_other_loops()
        self.supervisor.attach()

    def close(self) -> None:
        self.supervisor.close()
        if self._publisher is not None:
            self._publisher.close()
        loop = self.supervisor.loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, with all its callers
                loop.call_soon_threadsafe(self._commands.fail_all, self.closed_reason)

    def is_well(self) -> bool:
        return self.is_ready and self.supervisor.is_well()

    @property
    def is_sleeping(self) -> bool:
        return self.supervisor.is_sleeping

    def restart(self) -> None:
        self.supervisor.restart()

    def sleep(self) -> None:
        self.supervisor.sleep()

    def wake_up(self) -> None:
        self.supervisor.wake_up()

    @property
    def is_ready(self) -> bool:
        run = self.supervisor.run
        is_ready = self.supervisor.state is State.READY
        return is_ready and run is not None and run.failure is None

    @property
    def is_closed(self) -> bool:
        return self.supervisor.state is State.CLOSED

    # messages to the engine

    def write(self, message: AddRequests | AbortRequests) -> None:
        self.supervisor.write(message)

    def flush(self) -> None:
        self.supervisor.flush()

    def note_work(self) -> None:
        self.supervisor.note_work()

    def note_progress(self) -> None:
        self.supervisor.restarts.note_progress()

    def command(self, command: Command, seconds: float = COMMAND_SECONDS) -> asyncio.Future[Reply]:
        if isinstance(command, Pause | Resume):
            self._is_paused = isinstance(command, Pause)
            self.supervisor.note_work()
        if self.supervisor.state is State.CLOSED:
            return replied(failed(NO_ENGINE, self.closed_reason))
        if self.supervisor.state is not State.READY:
            return replied(failed(NO_ENGINE, "there is no engine that is ready at the moment"))
        reply = self._commands.send(command, seconds, self._write_command)
        self.supervisor.flush()
        return reply

    def _write_command(self, number: int, command: Command) -> None:
        self.supervisor.write(EngineCommand(number, command.name, pack(command)))

    # calls of the supervisor; see `octavo.client.supervisor.Owner`

    def start_message(self, like: EngineFacts | None) -> StartEngine:
        arguments, like = self._arguments, like or self._like
        if like is not None:  # the size that was found when the memory was free
            arguments = replace(
                arguments,
                max_model_len=like.max_model_len,
                num_gpu_blocks_override=like.num_blocks,
                data_parallel_size=1,  # it divides no memory
            )
        facts = self.supervisor.facts
        if facts is not None and facts.accumulation_order:  # open streams continue with equal bits
            arguments = replace(arguments, accumulation_order=facts.accumulation_order)
        self._start_level = level_in_use()
        return StartEngine(
            pack(arguments),
            self._start_level,
            self._cache_key,
            flags_in_use(),
            is_first=facts is None,
            log_form=form_in_use(),
        )

    def wants_spare(self) -> bool:
        return self._arguments.spare_engine

    def has_work(self) -> bool:
        return self.user.has_requests() and not self._is_paused

    def on_ready(self, epoch: int) -> None:
        self.vitals.note_ready(self._clock())
        if self._is_paused:
            self._commands.send(Pause(), COMMAND_SECONDS, self._write_command)
        level = level_in_use()
        # Before there is a loop no command can have set it.
        if level != self._start_level and self.supervisor.loop is not None:
            self._commands.send(SetLogLevel(level), COMMAND_SECONDS, self._write_command)
        self.user.on_ready(epoch)

    def on_output(self, output: StepOutput) -> None:
        self.user.on_events(output.events)
        now, self.load = self._clock(), output.load
        if output.events:
            self.vitals.note_step(now)
        if output.snapshot is not None:
            self.vitals.note_steps(now, output.snapshot.num_steps)
            self.totals = output.snapshot.after(self._earlier)

    def on_reply(self, reply: CommandReply) -> None:
        self._commands.take(reply)

    def on_cache_changes(self, changes: CacheChanges) -> None:
        if self._publisher is None:
            raise WireError("it reported its prefix cache, which is not followed")
        self._publisher.publish(changes.notes, self.facts)

    def deliver(self, merge: bool) -> None:
        self.user.deliver(merge)

    def on_end(self, last_step: tuple[int, ...], was_killed: bool, reason: str) -> bool:
        self._earlier = self.totals
        if self._publisher is not None:
            self._publisher.clear()
        self.vitals.note_end(self._clock(), is_death=reason not in WANTED)
        self._commands.fail_all(f"the engine ended before it replied: {reason}")
        self.load = EngineLoad(num_free_blocks=self.totals.num_blocks - 1)
        return self.user.on_end(last_step, was_killed, reason)

    def on_give_up(self, message: str) -> None:
        self.closed_reason = message
        self.user.on_give_up(message)


class ProcessClient(JournalClient[ProcessEngine]):
    """The client of engines in processes of their own, which are to be started."""

    _is_interrupted = False

    def launch(self) -> None:
        """Start the first engine's process; `start` then waits for all engines."""
        try:
            self.engines[0].launch()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Wait until all engines are ready; raise EngineStartError if one fails.

        The first decides how large they all are, and how they add up, so the others follow it. Call
        it outside of any event loop: it takes as long as loading the model, twice for several.
        """
        first, *others = self.engines
        try:
            first.start()
            if not others:
                return
            for engine in self.engines:
                engine.follow(first.facts)
            for engine in others:
                self._check_wanted()
                engine.launch()
            self._check_wanted()
            for engine in others:
                engine.start()
        except BaseException:
            self.close()
            raise

    def interrupt(self) -> None:
        """End the processes, so that `start` fails soon; for another thread than the one in it."""
        self._is_interrupted = True
        for engine in self.engines:
            if engine.supervisor.run is not None:
                engine.supervisor.run.process.kill()

    def _check_wanted(self) -> None:
        """Raise EngineStartError after `interrupt`, which ends only what has been started."""
        if self._is_interrupted:
            raise EngineStartError("the start was interrupted")


def make_client(
    arguments: EngineArguments,
    launchers: Sequence[Launcher],
    timing: Timing | None = None,
    clock: Callable[[], float] = time.monotonic,
    model: str = "",
) -> ProcessClient:
    """Return the client of an engine for each launcher, which are to be started.

    The log names the model, if there are engines of several.
    """
    # Drawn here, so that equal digests mean equal content in all engines of this front end.
    key = secrets.token_bytes(CACHE_KEY_BYTES)
    publishers: list[CachePublisher | None] = [None] * len(launchers)
    if arguments.kv_events_config is not None:
        publishers = [
            *open_publishers(arguments.kv_events_config, arguments.first_engine, len(launchers))
        ]
    engines = [
        ProcessEngine(
            *(arguments, launcher, timing, clock, key, arguments.first_engine + index),
            publisher=publishers[index],
            model=model,
        )
        for index, launcher in enumerate(launchers)
    ]
    return ProcessClient(engines, clock, first=arguments.first_engine, model=model)


def launch_engines(
    arguments: EngineArguments, timing: Timing | None = None, model: str = ""
) -> ProcessClient:
    """Launch the first engine's process; return the client, whose `start` waits for all engines.

    `model` is what the log calls it, if there are engines of several. Nothing that only the front
    end needs is imported for this, so that the process can do its own imports at the same time.
    """
    if not sys.platform.startswith("linux"):
        raise ConfigError("engine='process' needs Linux; use engine='inline'")
    directory = arguments.adapter_directory
    directories = [] if directory is None else [Path(directory)]
    launchers: list[Launcher] = []
    try:
        if arguments.data_parallel_backend == "ray":
            from octavo.client.remote.ray_agent import ray_launchers

            launchers.extend(ray_launchers(arguments))
            arguments = replace(arguments, data_parallel_size=1)  # each has a machine of its own
        elif arguments.distributed_executor_backend == "ray":
            from octavo.client.remote.ray_nodes import ray_nodes_launcher

            one, arguments = ray_nodes_launcher(arguments)
            launchers.append(one)
        else:
            launchers.extend(
                ProcessLauncher(directories=directories, processors=processors)
                for processors in divided(arguments.data_parallel_size)
            )
        client = make_client(arguments, launchers, timing, model=model)
    except BaseException:
        for launcher in launchers:
            launcher.close()
        raise
    client.launch()
    return client


def start(
    arguments: EngineArguments,
    timing: Timing | None,
    processors: Mapping[str, LogitsProcessor] | None,
    _meanwhile: object = None,
) -> ProcessClient:
    """Launch the engines' processes, and wait until they are ready.

    What is to be done while this process opens a model is not: none of these does.
    """
    if processors:
        raise ConfigError(
            "logits_processors are functions, which do not cross into the engine's process; "
            "use engine='inline', or leave them out"
        )
    client = launch_engines(arguments, timing)
    client.start()
    return client
