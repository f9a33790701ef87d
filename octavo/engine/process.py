"""The engine's process: `python -m octavo.engine.process`, started by the front end alone.

It says hello, is told what engine to be, builds it, and then steps it: messages in, a step,
events out. It ends when its front end does, or when a step goes wrong as a whole; it has nothing
to save, since the front end's journal can begin every request again.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, Protocol

from octavo.core.engine import EngineCore, Executor
from octavo.core.request import Abort, Event, Pause, ResetPrefixCache, Resume, TokenEvent
from octavo.core.snapshot import take_snapshot
from octavo.engine_arguments import EngineArguments
from octavo.loader import CheckpointError
from octavo.observe.log import set_up_log
from octavo.wire.channel import DUMP_SIGNAL, Channel, Progress
from octavo.wire.codec import event_to_wire, name_of, request_from_wire
from octavo.wire.crash_record import CrashRecord, Note, RecordingExecutor
from octavo.wire.facts import EngineFacts
from octavo.wire.message_types import (
    MAX_TEXT,
    Add,
    Command,
    Down,
    Drop,
    Failed,
    Hello,
    News,
    Ready,
    Start,
    Up,
    WireError,
    WireEvent,
    WireRequest,
)

log = logging.getLogger(__name__)

SNAPSHOT_SECONDS = 0.5
_LOCAL = "octavo.engine.build"  # the factory of real engines
_PR_SET_PDEATHSIG = 1
_COMMANDS: dict[str, Callable[[], Event]] = {
    "pause": Pause,
    "resume": Resume,
    "reset_prefix_cache": ResetPrefixCache,
}
# Between two collections of the oldest generation; all that loading made is frozen out of it.
_GC_THRESHOLDS = (10_000, 20, 1000)


class HostedEngine(NamedTuple):
    """What a factory gives: an engine, and the facts of its model."""

    core: EngineCore
    facts: EngineFacts


# Errors that say all that is to be said.
_SPEAKING = (ValueError, OSError, CheckpointError)
Wrap = Callable[[Executor], Executor]
Factory = Callable[[EngineArguments, Wrap], HostedEngine]


def main(argv: list[str]) -> int:
    """The process's whole life; the exit status."""
    options = _parse(argv)
    _settle(options.parent, options.dies_with_thread)
    progress = Progress()
    channel = Channel(options.socket, options.epoch, progress)
    channel.start_pulse()
    try:
        if options.factory is None:  # while the front end has to do with its own imports
            with contextlib.suppress(Exception):  # it comes again where it is told
                importlib.import_module(_LOCAL)
        channel.send(Hello())
        start = channel.receive(wait=True)
        if not isinstance(start, Start):
            raise WireError(f"the first message was a {type(start).__name__}, not a Start")
        set_up_log(start.log_level)
        box = CrashRecord(options.crash_record)

        def tell_size(num_tokens: int) -> None:
            progress.num_tokens = num_tokens

        wrap = partial(RecordingExecutor, box=box, tell_size=tell_size)
        engine = _build(options.factory, start.arguments, wrap)
        if isinstance(engine, Failed):
            channel.send(engine)
            return 3
        channel.send(Ready(engine.facts))
        _spare_the_collector()  # while the front end sends what waits for this engine
        try:
            Host(engine.core, channel, box, progress).serve()
        except Exception as error:
            log.exception("the engine ends: a step went wrong")
            channel.send(Failed(_describe(error), at_start=False))
        return 4
    finally:
        channel.close()


class Messages(Protocol):
    """The way to the front end, as far as the working loop uses it."""

    def receive(self, wait: bool) -> Down | None:
        """The next message; None if there is none yet, and none is to be waited for."""

    def send(self, message: Up) -> None:
        """Hand a message on; WireError if it cannot cross."""


class Host:
    """The working loop."""

    def __init__(
        self,
        core: EngineCore,
        channel: Messages,
        box: Note,
        progress: Progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._core = core
        self._channel = channel
        self._box = box
        self._progress = progress
        self._clock = clock
        self._outbox: list[WireEvent] = []  # answers that are no step's
        self._snapshot_at = float("-inf")

    def serve(self) -> None:
        """Work until something goes wrong, or the process is ended."""
        while True:
            if self.is_idle:
                self.rest()
                self._take(wait=True)
            self.turn()

    @property
    def is_idle(self) -> bool:
        """Whether only a message can bring work."""
        return not (self._core.has_work or self._outbox)

    def rest(self) -> None:
        """Say that nobody is at work."""
        self._box.write(())
        self._progress.busy_since = None
        self._tell([], is_idle=True)

    def turn(self) -> None:
        """The messages that are there, a step, and what it brings."""
        self._take(wait=False)
        self._progress.busy_since = self._clock()
        events = self._core.step()
        self._progress.step += 1
        self._tell(events)

    def _take(self, wait: bool) -> None:
        """All the messages that are there; with `wait` at least one."""
        while (message := self._channel.receive(wait)) is not None:
            if wait:
                self._progress.busy_since, wait = self._clock(), False
            match message:
                case Add(requests):
                    for request in requests:
                        self._add(request)
                case Drop(numbers):
                    for number in numbers:
                        self._core.on_event(Abort(name_of(number)))
                case Command(verb):
                    self._core.on_event(_COMMANDS[verb]())
                case Start():
                    raise WireError("a second Start")

    def _add(self, wire: WireRequest) -> None:
        """A request that is none is its own failure; one that breaks the core is noted before."""
        try:
            request = request_from_wire(wire)
        except WireError as error:
            num_emitted = len(wire.emitted) // 4
            self._outbox.append(
                WireEvent(wire.number, num_emitted, (), "refused", message=str(error)[:MAX_TEXT])
            )
            return
        self._box.write((wire.number,))
        self._core.on_event(request)

    def _tell(self, events: list[TokenEvent], is_idle: bool = False) -> None:
        """Send the events, and the statistics when they are due."""
        wire, self._outbox = self._outbox, []
        wire.extend(map(self._translate, events))
        now, snapshot = self._clock(), None
        if is_idle or now >= self._snapshot_at:
            self._snapshot_at = now + SNAPSHOT_SECONDS
            snapshot = take_snapshot(self._core, now)
        if wire or snapshot is not None:
            self._send(News(tuple(wire), snapshot))

    def _translate(self, event: TokenEvent) -> WireEvent:
        try:
            return event_to_wire(event)
        except WireError as error:
            return self._give_up(int(event.request_id), event.position, str(error))

    def _give_up(self, number: int, position: int, why: str) -> WireEvent:
        """End a request whose news cannot cross."""
        self._core.on_event(Abort(name_of(number)))
        return WireEvent(number, position, (), "error", message=why[:MAX_TEXT])

    def _send(self, news: News) -> None:
        """In as many frames as it takes; an event that is too large for one ends its request."""
        try:
            self._channel.send(news)
        except WireError as error:
            events = news.events
            if len(events) > 1:
                middle = len(events) // 2
                self._send(News(events[:middle], news.snapshot))
                self._send(News(events[middle:]))
                return
            (event,) = events
            why = f"what it asked to be told is too much: {error}; ask for fewer log-probabilities"
            self._send(News((self._give_up(event.number, event.position, why),), news.snapshot))


def local_engine(arguments: EngineArguments, wrap: Wrap) -> HostedEngine:
    """The factory of real engines."""
    from octavo.engine.build import start_local_engine

    engine = start_local_engine(arguments, wrap=wrap)
    return HostedEngine(engine.core, engine.facts)


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="octavo.engine.process", description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--crash-record", type=int, required=True, help="a descriptor")
    parser.add_argument("--dies-with-thread", action="store_true")
    parser.add_argument("--factory", help="MODULE:FUNCTION that makes the engine, for tests")
    return parser.parse_args(argv)


def _settle(parent: int, dies_with_thread: bool) -> None:
    """Live and die as the front end's child, and as nobody else's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is the front end's to answer
    faulthandler.enable()
    faulthandler.register(DUMP_SIGNAL, all_threads=True)
    # The kernel's signal comes when the thread that started this process ends; where that may be
    # before the front end does, the pulse alone looks after it.
    if dies_with_thread:
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        raise SystemExit("the front end was gone before its engine had begun")


def _build(name: str | None, arguments: EngineArguments, wrap: Wrap) -> HostedEngine | Failed:
    """The engine, or why there is none."""
    try:
        factory: Factory = local_engine
        if name is not None:
            module, _, function = name.partition(":")
            factory = getattr(importlib.import_module(module), function)
        return factory(arguments, wrap)
    except Exception as error:
        if not isinstance(error, _SPEAKING):
            traceback.print_exc()
        return Failed(_describe(error), at_start=True)


def _describe(error: Exception) -> str:
    text = str(error)
    if not isinstance(error, _SPEAKING) or not text:
        text = f"{type(error).__name__}: {text}"
    return text[:MAX_TEXT]


def _spare_the_collector() -> None:
    """What loading has made stays for good: look at it no more, and seldom at the rest."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
