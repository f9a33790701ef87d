"""The main program of the engine's process: `python -m octavo.engine.process`.

Only the front end starts it. It announces itself, receives the engine's arguments, builds the
engine, and then loops: receive messages, run a step, send the events. It ends when its front end
ends, or when a whole step fails. It has nothing to save: the front end's journal can resubmit
every request to its successor.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from octavo.backends.interface import OldModuleError
from octavo.confine.process import confine, die_before_parent, give_up_privileges
from octavo.core.config import ConfigError
from octavo.core.engine import EngineCore, Executor
from octavo.core.request import Abort, TokenEvent
from octavo.core.snapshot import EngineLoad, take_load, take_snapshot
from octavo.engine.commands import NO_HANDLERS, answer, unsendable
from octavo.engine.file_kinds import make_file_kinds
from octavo.engine.grammar_loader import GrammarLoader
from octavo.engine.holds import Holds
from octavo.engine.shortage import describe_shortage, is_shortage
from octavo.exec.recording import RecordingExecutor, SuspectRecord
from octavo.loader import CheckpointError
from octavo.observe.collection import freeze
from octavo.observe.log import set_up_log
from octavo.observe.output import never_wait_for_stderr
from octavo.options.engine import EngineArguments
from octavo.wire.channel import DUMP_SIGNAL, Channel, StepProgress
from octavo.wire.codec import cache_changes, event_to_wire, name_of, request_from_wire
from octavo.wire.crash_record import CrashRecord
from octavo.wire.facts import EngineFacts
from octavo.wire.link import LinkKeys, keys_of
from octavo.wire.message_types import (
    MAX_TEXT,
    AbortRequests,
    AddRequests,
    CommandReply,
    EngineCommand,
    EngineFailed,
    EngineReady,
    FromEngine,
    ProcessStarted,
    StartEngine,
    StepOutput,
    ToEngine,
    WireError,
    WireEvent,
    WireRequest,
    unpack,
)

if TYPE_CHECKING:
    from octavo.engine.ranks.group import ProcessGroup
    from octavo.engine.tensor_files import RequestFiles, TensorFileKind, TensorFiles

log = logging.getLogger(__name__)

SNAPSHOT_SECONDS = 0.5
POLL_SECONDS = 0.001  # an idle engine looks so often whether a grammar or a file is ready
FREED_SECONDS = 0.002  # before a step that only frees slots; one for a new request does it too
_FAILING_SECONDS = 0.3  # in which a step that waits for a rank fails by itself
LINK_SECONDS = 120.0  # for the first message of a front end on another machine
_NO_ANSWER = (
    "the front end at %s has not answered for %g s: the secret of this machine must be the front "
    "end's (--link-secret-file), and this machine must reach that address (--link-host)"
)
IDLE_SECONDS = 0.1  # before an engine without work makes its grammar engine
_BUILD_MODULE = "octavo.engine.build"
_PR_SET_PDEATHSIG = 1
_RANK_SIGNAL = signal.SIGUSR2  # which this process sends to its own main thread
# Collect the oldest generation rarely; what loading has made is frozen, so it is never scanned.
_GC_THRESHOLDS = (10_000, 20, 1000)


# Errors whose message needs neither the error's type nor a traceback.
_SELF_EXPLANATORY = (ValueError, OSError, CheckpointError, OldModuleError)


class CoreAndFacts(NamedTuple):
    """The result of a factory: an engine, and the facts that the front end needs."""

    core: EngineCore
    facts: EngineFacts
    grammars: GrammarLoader | None = None  # None: shapes are compiled in the step
    adapters: RequestFiles | None = None  # None: requests have none
    may_read: bool = False  # what computes must still open files once the engine runs
    file_kinds: Mapping[str, TensorFileKind] = {}  # what files are loaded for while it runs
    ranks: ProcessGroup | None = None  # processes that compute with this one


Wrap = Callable[[Executor], Executor]
Factory = Callable[[EngineArguments, Wrap, bytes], CoreAndFacts]  # with the key of digests


def main(argv: list[str]) -> int:
    """Build the engine and run it; return the exit status."""
    options = _parse(argv)
    never_wait_for_stderr()
    die_before_parent()  # before the kernel gives the files of this process to root
    give_up_privileges()
    _tie_to_parent(options.parent, options.dies_with_thread)
    record = SuspectRecord(CrashRecord(options.crash_record))
    progress = StepProgress()
    channel = Channel(
        options.socket, options.epoch, progress, None if options.secret is None else _keys(options)
    )
    channel.start_heartbeat()
    try:
        if options.factory is None:  # import while the front end is still busy with its imports
            with contextlib.suppress(Exception):  # _build raises it again, and reports it
                importlib.import_module(_BUILD_MODULE)
        channel.send(ProcessStarted())
        start = channel.receive(math.inf if options.secret is None else LINK_SECONDS)
        if start is None:
            log.error(_NO_ANSWER, options.socket, LINK_SECONDS)
            return 1
        if not isinstance(start, StartEngine):
            raise WireError(f"the first message was {type(start).__name__}, not StartEngine")
        set_up_log(start.log_level, start.flags, start.log_form)

        def note_size(num_tokens: int) -> None:
            progress.num_tokens = num_tokens

        wrap = partial(RecordingExecutor, record=record, report_size=note_size)
        engine = _build(options.factory, start, wrap)
        if isinstance(engine, EngineFailed):
            channel.send(engine)
            return 3
        files = None
        if options.loader is not None:
            files = _connect_loader(options.loader, engine.file_kinds)
            if engine.adapters is not None:
                engine.adapters.attach(files)
        _run(engine, files, channel, record, progress)
        return 4
    finally:
        channel.close()


def _run(
    engine: CoreAndFacts,
    files: TensorFiles | None,
    channel: Channel,
    record: SuspectRecord,
    progress: StepProgress,
) -> None:
    """Run the engine until it fails; let the front end and the log know why."""
    ranks, failed = engine.ranks, threading.Event()
    try:
        try:
            if ranks is not None:
                _end_with(ranks, failed)
            _confine(engine.may_read)
            channel.send(EngineReady(engine.facts))
            _tune_garbage_collection()  # while the front end sends the requests that were waiting
            beside = engine.grammars, files, engine.adapters
            EngineLoop(engine.core, channel, record, progress, time.monotonic, *beside).serve()
        finally:  # the end of a rank may raise its error here too, and none after this
            failed.set()
    except Exception as error:
        reason = "" if ranks is None else ranks.reason_soon()
        if not reason:  # the end of another process is in the log
            log.exception("the engine ends because a step failed")
        channel.send(EngineFailed(reason[:MAX_TEXT] or _describe(error)))


class MessageChannel(Protocol):
    """The connection to the front end, as `EngineLoop` uses it."""

    def receive(self, seconds: float) -> ToEngine | None:
        """Return the next message; None if none comes within so many seconds."""

    def send(self, message: FromEngine) -> None:
        """Send a message; raise WireError if it cannot be encoded."""


class EngineLoop:
    """The loop that receives messages, steps the core and sends its events."""

    def __init__(
        self,
        core: EngineCore,
        channel: MessageChannel,
        record: SuspectRecord,
        progress: StepProgress,
        clock: Callable[[], float] = time.monotonic,
        grammars: GrammarLoader | None = None,
        files: TensorFiles | None = None,
        adapters: RequestFiles | None = None,
    ) -> None:
        self._core = core
        self._cache_log = core.scheduler.kv.log  # None: the prefix cache is not followed
        self._grammars = grammars
        holders = [each for each in (grammars, adapters) if each is not None]
        self._holds = Holds(holders, record)
        self._files = files
        self._handlers = NO_HANDLERS if files is None else files.handlers
        self._channel = channel
        self._record = record
        self._progress = progress
        self._clock = clock
        self._outbox: list[WireEvent] = []  # events that no step produced
        self._snapshot_at = float("-inf")
        self._sent_load = EngineLoad()

    def serve(self) -> None:
        """Run until a step fails or the process is killed."""
        while True:
            if self.is_idle:
                self.report_idle()
                self._rest()
            elif self._core.only_frees and not self._outbox:
                # Meanwhile the last event leaves: its thread may have no other processor.
                self._receive(FREED_SECONDS)
            self.run_step()

    def _rest(self) -> None:
        """Wait for a message, for the end of a hold, or for what is made beside the steps."""
        seconds = self._core.seconds_to_deadline()
        grammars = self._grammars
        while self._awaits_others and self.is_idle and seconds > 0.0:
            self._receive(POLL_SECONDS)
            self._take_from_others()
            seconds -= POLL_SECONDS
        if grammars is not None and not grammars.is_prepared and self.is_idle and seconds > 0.0:
            self._receive(min(seconds, IDLE_SECONDS))
            if self._awaits_others or not self.is_idle:
                return
            grammars.prepare_engine()
            seconds = self._core.seconds_to_deadline()
        if self.is_idle and seconds > 0.0:
            self._receive(seconds)

    @property
    def _awaits_others(self) -> bool:
        """True if a request waits for what is made beside the steps, or a file is being read."""
        return bool(self._holds.num_held or (self._files is not None and self._files.num_loading))

    def _take_from_others(self) -> None:
        """Take the files and whatever else has become ready."""
        if self._files is not None and self._files.num_loading:
            self._files.take()
        self._holds.take(self._core)

    @property
    def is_idle(self) -> bool:
        """True if there is no work until a message comes or a hold ends."""
        return not (self._core.has_work or self._outbox)

    def report_idle(self) -> None:
        """Record that no request is being computed, and send the statistics."""
        self._record.rest()
        self._progress.busy_since = None
        self._send_events([], is_idle=True)

    def run_step(self) -> None:
        """Handle the messages that have come, run a step, and send its events."""
        self._receive(0.0)
        self._take_from_others()
        self._progress.busy_since = self._clock()
        events = self._core.step()
        self._progress.step += 1
        self._send_events(events)

    def _receive(self, seconds: float) -> None:
        """Handle all messages that have come; wait so many seconds for the first one."""
        while (message := self._channel.receive(seconds)) is not None:
            if seconds > 0.0:
                self._progress.busy_since, seconds = self._clock(), 0.0
            match message:
                case AddRequests(requests):
                    for request in requests:
                        self._add(request)
                case AbortRequests(numbers):
                    for number in numbers:
                        self._core.on_event(Abort(name_of(number)))
                case EngineCommand():
                    self._answer(message)
                case StartEngine():
                    raise WireError("StartEngine came a second time")

    def _answer(self, command: EngineCommand) -> None:
        """Carry out a command, and send the reply to it, now or later."""
        self._record.begin_command()

        def send(reply: CommandReply) -> None:
            try:
                self._channel.send(reply)
            except WireError as error:
                self._channel.send(unsendable(command, error))

        answer(self._core, command, send, self._handlers)

    def _add(self, wire: WireRequest) -> None:
        """Add a request to the core; one that is invalid fails alone."""
        try:
            request = request_from_wire(wire)
        except WireError as error:
            num_emitted = len(wire.emitted) // 4
            self._outbox.append(
                WireEvent(wire.number, num_emitted, (), "refused", message=str(error)[:MAX_TEXT])
            )
            return
        self._record.add(wire.number)
        self._holds.add(self._core, request)

    def _send_events(self, events: list[TokenEvent], is_idle: bool = False) -> None:
        """Send the events, with the statistics when they are due."""
        if self._cache_log is not None:
            for message in cache_changes(self._cache_log.take()):
                self._channel.send(message)
        wire, self._outbox = self._outbox, []
        try:
            wire.extend([*map(event_to_wire, events)])
        except WireError:  # of one event, which fails its request alone
            wire.extend(map(self._to_wire, events))
        self._holds.leave(events)
        now, snapshot = self._clock(), None
        if is_idle or now >= self._snapshot_at:
            self._snapshot_at = now + SNAPSHOT_SECONDS
            snapshot = take_snapshot(self._core, now)
        load = take_load(self._core)
        if wire or snapshot is not None or load.num_running != self._sent_load.num_running:
            self._sent_load = load
            self._send(StepOutput(tuple(wire), load, snapshot))

    def _to_wire(self, event: TokenEvent) -> WireEvent:
        try:
            return event_to_wire(event)
        except WireError as error:
            return self._fail(int(event.request_id), event.position, str(error))

    def _fail(self, number: int, position: int, why: str) -> WireEvent:
        """Abort a request whose output cannot be sent; return its last event."""
        self._core.on_event(Abort(name_of(number)))
        return WireEvent(number, position, (), "error", message=why[:MAX_TEXT])

    def _send(self, output: StepOutput) -> None:
        """Send in as many frames as needed; fail a request whose event is too large for one."""
        try:
            self._channel.send(output)
        except WireError as error:
            events = output.events
            if len(events) > 1:
                middle = len(events) // 2
                self._send(StepOutput(events[:middle], output.load, output.snapshot))
                self._send(StepOutput(events[middle:], output.load))
                return
            (event,) = events
            why = f"its output is too large to be sent: {error}; ask for fewer log-probabilities"
            failed = self._fail(event.number, event.position, why)
            self._send(StepOutput((failed,), output.load, output.snapshot))


def build_model_engine(
    arguments: EngineArguments, wrap: Wrap, cache_key: bytes, *, is_first: bool = True
) -> CoreAndFacts:
    """Build the engine of a real model: the default factory."""
    from octavo.engine.build import build_engine

    engine = build_engine(arguments, wrap=wrap, cache_key=cache_key, is_first=is_first)
    # PyTorch reads modules when it uses them first: in processors of the user's too.
    processors_read = bool(arguments.logits_processors) and "torch" in sys.modules
    may_read = engine.config.kind.may_read or processors_read
    grammars, kinds = GrammarLoader(engine.grammars), make_file_kinds(engine)
    return CoreAndFacts(
        engine.core, engine.facts, grammars, engine.adapters, may_read, kinds, engine.ranks
    )


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="octavo.engine.process", description=__doc__)
    parser.add_argument("--socket", required=True, help="the front end's address")
    parser.add_argument("--secret", type=int, help="a descriptor, of the secret of links")
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--crash-record", type=int, required=True, help="a descriptor")
    parser.add_argument("--loader", type=int, help="a descriptor, of the connection to the loader")
    parser.add_argument("--dies-with-thread", action="store_true")
    parser.add_argument("--factory", help="MODULE:FUNCTION that builds the engine, for tests")
    return parser.parse_args(argv)


def _keys(options: argparse.Namespace) -> LinkKeys:
    """Return the keys of the link, whose secret is read, and kept nowhere."""
    with os.fdopen(options.secret, "rb") as file:
        return keys_of(file.read())


def _tie_to_parent(parent: int, dies_with_thread: bool) -> None:
    """Arrange that this process ends with the front end that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front end handles Ctrl-C
    faulthandler.enable()
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    # The kernel sends this signal when the thread that started this process ends. Where that may
    # be earlier than the front end's end, only the heartbeat thread watches the front end.
    if dies_with_thread:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit("the front end ended before its engine had started")


def _connect_loader(descriptor: int, kinds: Mapping[str, TensorFileKind]) -> TensorFiles:
    """Use the connection to the loader, which the front end has started."""
    from octavo.engine.tensor_files import TensorFiles
    from octavo.loader_process.connection import LoaderConnection

    return TensorFiles(kinds, LoaderConnection(socket.socket(fileno=descriptor), time.monotonic))


def _end_with(ranks: ProcessGroup, failed: threading.Event) -> None:
    """Make the end of a rank an error in the main thread, also where that waits for work.

    A step fails by itself, as `failed` says. The signal comes once, and may meet `failed.set`,
    whose lock it must not wait for.
    """

    thread = threading.main_thread().ident
    assert thread is not None

    def fail(number: int, frame: object) -> None:
        if not failed.is_set():
            raise RuntimeError(ranks.reason)

    def end() -> None:
        if not failed.wait(_FAILING_SECONDS):
            signal.pthread_kill(thread, _RANK_SIGNAL)

    signal.signal(_RANK_SIGNAL, fail)
    ranks.call_at_end(end)


def _confine(may_read: bool) -> None:
    """Give up files, network and other processes: what is loaded now is all that is needed."""
    missing = confine(may_read=may_read)
    if missing is not None:
        log.warning("the engine's process is not confined: %s", missing)


def _build(name: str | None, start: StartEngine, wrap: Wrap) -> CoreAndFacts | EngineFailed:
    """Build the engine, or return the reason why it cannot be built."""
    try:
        factory: Factory = partial(build_model_engine, is_first=start.is_first)
        if name is not None:
            module, _, function = name.partition(":")
            factory = getattr(importlib.import_module(module), function)
        return factory(unpack(start.arguments, EngineArguments), wrap, start.cache_key)
    except Exception as error:
        if is_shortage(error):
            return EngineFailed(describe_shortage("load the engine", error)[:MAX_TEXT])
        if not isinstance(error, _SELF_EXPLANATORY):
            traceback.print_exc()
        is_of_model = getattr(error, "is_of_model", False)
        return EngineFailed(_describe(error), is_of_model, isinstance(error, ConfigError))


def _describe(error: Exception) -> str:
    text = str(error)
    if not isinstance(error, _SELF_EXPLANATORY) or not text:
        text = f"{type(error).__name__}: {text}"
    return text[:MAX_TEXT]


def _tune_garbage_collection() -> None:
    """Freeze what loading has made, which stays for good; scan the rest rarely."""
    freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


if __name__ == "__main__":
    # Nothing is left to save, and what native code refers to need not be taken apart.
    os._exit(main(sys.argv[1:]))
