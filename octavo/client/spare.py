"""A spare engine: loaded beside the engine that serves, and without requests, until that one ends.

It has the same model and a KV cache of the same size, so that it can continue every open request.
The memory of its KV cache is taken only when it is used. A spare that ends or misbehaves is
replaced after a delay; requests do not notice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import assert_never

from octavo.client.engine_run import EngineRun
from octavo.client.launcher import Incoming
from octavo.client.restart_policy import RestartPolicy, Timing
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
    WireError,
)

log = logging.getLogger(__name__)


class Spare:
    """The spare engine, if there is one at the moment."""

    def __init__(
        self,
        timing: Timing,
        clock: Callable[[], float],
        start_message: Callable[[], StartEngine],
        check: Callable[[EngineFacts], None],
    ) -> None:
        self._timing = timing
        self._clock = clock
        self._start_message = start_message
        self._check = check  # raises WireError if the engine serves another model
        self._restarts = RestartPolicy(timing)
        self.run: EngineRun | None = None
        self.facts: EngineFacts | None = None  # once it is ready

    def begin(self, run: EngineRun, on_exit: Callable[[], None]) -> None:
        """Stand by with an engine that was just launched."""
        assert self.run is None, "there is a spare engine already"
        self.run, self.facts = run, None
        run.process.watch(on_exit)

    def attach(self, on_exit: Callable[[], None]) -> None:
        """Watch the process in the running event loop, which is another than before."""
        if self.run is not None:
            self.run.liveness.restart_clocks(self._clock())
            self.run.process.watch(on_exit)

    @property
    def is_usable(self) -> bool:
        """True if there is an engine that has not failed, loaded or still loading."""
        run = self.run
        return run is not None and run.failure is None and run.exit_reason() is None

    def release(self) -> tuple[EngineRun, EngineFacts | None] | None:
        """Return the engine, loaded or still loading, and have none any more."""
        if not self.is_usable:
            return None
        run, facts = self.run, self.facts
        assert run is not None
        self.run = self.facts = None
        self._restarts.note_progress()
        return run, facts

    def close(self) -> None:
        """End the engine that stands by, if there is one."""
        if self.run is not None:
            self.run.process.close()
        self.run = self.facts = None

    def take(self, incoming: Incoming) -> bool:
        """Handle a frame if it is the spare's; return whether it is."""
        run = self.run
        if run is None or run.epoch != incoming.epoch:
            return False
        if run.failure is None:
            try:
                message = run.read(incoming, self._clock())
                if message is not None:
                    self._handle(run, message)
            except WireError as error:
                self._stop(run, f"it broke the protocol: {error}")
        return True

    def _handle(self, run: EngineRun, message: EngineMessage) -> None:
        match message:
            case ProcessStarted():
                run.writer.write(self._start_message())
            case EngineReady(facts):
                self._check(facts)
                self.facts = facts
                run.liveness.note_ready(self._clock())
                log.info("engine %s stands by", run.name)
            case EngineFailed(text):
                run.failure = text
            case StepOutput(events):  # statistics of an engine that has computed nothing
                if events:
                    raise WireError("a spare engine sent tokens")
            case CommandReply():
                raise WireError("a spare engine replied to a command that it was not sent")
            case CacheChanges():
                raise WireError("a spare engine has no requests, but its prefix cache changed")
            case _:
                assert_never(message)

    def check_liveness(self) -> None:
        """End an engine that gives no sign of life, or takes too long to load."""
        run = self.run
        if run is not None and run.failure is None:
            run.liveness.note_tick(self._clock())
            reason = run.liveness.overdue_reason(self._clock(), has_work=False)
            if reason is not None:
                self._stop(run, reason)

    def _stop(self, run: EngineRun, reason: str) -> None:
        run.failure = reason
        run.process.kill()

    def has_ended(self) -> bool:
        """Return whether there is an engine whose process has ended."""
        return self.run is not None and self.run.exit_reason() is not None

    def forget_ended(self) -> float | None:
        """Forget an engine that has ended; return the seconds until the next one, if any.

        After too many failures in a row there is none: an engine that ends is then replaced by one
        that must load the model first.
        """
        run = self.run
        if run is None or (reason := run.exit_reason()) is None:
            return None
        log.warning("the spare engine %s ended: %s", run.name, reason)
        self.close()
        self._restarts.note_end(run.liveness.seconds_ready(self._clock()))
        delay = self._restarts.next_delay()
        if delay is None:
            log.error("no spare engine is started any more: the last one ended: %s", reason)
            return None
        return max(delay, self._timing.spare_delay_seconds)
