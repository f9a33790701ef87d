"""The requests of one call, run through an engine in the caller's own thread to their ends."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from octavo.api.local_model import LocalModel
from octavo.api.outputs import EngineDeadError, RequestOutput
from octavo.api.requests import CheckedRequest, RequestTable
from octavo.core.request import Request, ResetPrefixCache, TokenEvent

if TYPE_CHECKING:
    from octavo.adapter_copies.copies import AdapterCopies

Take = Callable[[RequestOutput], None]

REDRAW_SECONDS = 0.1
_POLL_SECONDS = 0.001


class ProgressLine:
    """A progress line, drawn at most ten times a second and only on a terminal."""

    def __init__(self, total: int, shown: bool, stream: TextIO | None = None) -> None:
        self._total = total
        self._stream = stream or sys.stderr
        self.is_shown = shown and total > 0 and self._stream.isatty()
        self._began = self._drawn = time.monotonic()
        self._done = self._tokens = 0

    def show(self, done: int, new_tokens: int) -> None:
        """Take the number of finished requests and of new output tokens; redraw the line."""
        self._done = done
        self._tokens += new_tokens
        now = time.monotonic()
        if self.is_shown and (now - self._drawn > REDRAW_SECONDS or self._done == self._total):
            self._drawn = now
            rate = self._tokens / max(now - self._began, 1e-9)
            line = f"\r{self._done}/{self._total} requests, {rate:.0f} tokens/s "
            self._stream.write(line)
            self._stream.flush()

    def close(self) -> None:
        """Leave the line as it is and start the next."""
        if self.is_shown:
            self._stream.write("\n")
            self._stream.flush()


class HeldInterrupts:
    """A context in which a Ctrl-C waits for `check` or the end; a second one does not wait.

    Signals arrive only in the main thread; elsewhere it does nothing.
    """

    def __init__(self) -> None:
        self._previous: Any = None
        self._is_pending = False
        self.was_forced = False  # by a second Ctrl-C, wherever the program was

    def __enter__(self) -> HeldInterrupts:
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGINT)
            if callable(previous):
                self._previous = previous
                signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
        if not isinstance(error, KeyboardInterrupt):  # an error must not hide a Ctrl-C
            self.check()

    def check(self) -> None:
        """Handle a Ctrl-C that has come meanwhile."""
        if self._is_pending:
            self._is_pending = False
            self._previous(signal.SIGINT, None)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending:
            self.was_forced = True
            self._previous(number, frame)
        self._is_pending = True


log = logging.getLogger(__name__)


class OfflineRunner:
    """An engine that works only while it is called, for one call at a time."""

    def __init__(self, model: LocalModel, copies: AdapterCopies | None = None) -> None:
        self._model = model
        self._table = RequestTable(model, copies)
        self._num_requests = 0
        self._death: BaseException | None = None  # what interrupted a step
        self._is_closed = False
        self._busy = threading.Lock()

    def next_name(self) -> str:
        """Return the next request id; they count from 1."""
        self._num_requests += 1
        return str(self._num_requests)

    def run(
        self,
        requests: Sequence[CheckedRequest],
        *,
        shows_progress: bool,
        take: Take | None = None,
    ) -> list[RequestOutput]:
        """Run requests to their ends; return their last outputs in the same order.

        `take` is called with each output as it comes, the last ones too. A request that fails has
        the finish reason "error" and the message; the others are complete.
        """
        self._acquire()
        held, names = HeldInterrupts(), list[str]()
        try:
            with held:
                try:
                    backlog = self._open(requests, names, held)
                    return self._drive(names, backlog, shows_progress, held, take)
                finally:
                    self._clear(names)
        except KeyboardInterrupt as error:
            if held.was_forced:  # perhaps in the middle of a change
                self._death = error
            raise
        finally:
            self._busy.release()

    def reset_prefix_cache(self) -> None:
        """Share no KV that was computed before now."""
        self._acquire()
        try:
            self._model.core.on_event(ResetPrefixCache())
        finally:
            self._busy.release()

    def close(self) -> None:
        """Release the engine; later calls raise an error."""
        if self._is_closed:
            return
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this LLM is in use by another call; close it when that has ended")
        self._is_closed = True
        self._model.release()
        self._busy.release()

    def _acquire(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                "this LLM is in use by another call; give it all prompts in one call, "
                "or use AsyncLLM"
            )
        try:
            self._check_alive()
        except BaseException:
            self._busy.release()
            raise

    def _check_alive(self) -> None:
        if self._is_closed:
            raise EngineDeadError("this LLM is closed; make a new LLM")
        if self._death is not None:
            raise EngineDeadError(
                "an error or Ctrl-C interrupted a step of this LLM; make a new LLM"
            ) from self._death

    def _open(
        self, requests: Sequence[CheckedRequest], names: list[str], held: HeldInterrupts
    ) -> deque[Request]:
        """Open all of them; return what the core must be given."""
        arrival = time.monotonic()
        backlog = deque[Request]()
        for request in requests:
            held.check()
            names.append(self.next_name())
            backlog.extend(self._table.open(names[-1], request, arrival))
        return backlog

    def _drive(
        self,
        names: Sequence[str],
        backlog: deque[Request],
        shows_progress: bool,
        held: HeldInterrupts,
        take: Take | None,
    ) -> list[RequestOutput]:
        core, table = self._model.core, self._table
        outputs: dict[str, RequestOutput] = {}
        progress = ProgressLine(len(names), shows_progress)
        while len(outputs) < len(names):
            while backlog and self._has_room(backlog[0]):
                self._model.holds.add(core, backlog.popleft())
            events = self._step()
            held.check()
            for event in events:
                output, aborts = table.receive(event)
                for abort in aborts:
                    core.on_event(abort)
                if output is None:
                    continue
                if take is not None:
                    take(output)
                if output.finished:
                    outputs[output.request_id] = output
            if progress.is_shown:
                progress.show(len(outputs), sum(len(event.tokens) for event in events))
        progress.close()
        return [outputs[name] for name in names]

    def _has_room(self, request: Request) -> bool:
        """Return whether the core's queue has room; a request that it rejected would be lost."""
        config, queue = self._model.engine.config.core, self._model.core.scheduler.queue
        if not queue.num_waiting:
            return True
        num_tokens = queue.num_tokens + request.num_tokens
        is_short = queue.num_waiting < config.max_num_waiting
        return is_short and num_tokens <= config.max_waiting_tokens

    def _step(self) -> list[TokenEvent]:
        """Run a step. An error in it is the engine's end: the result of the step is lost."""
        model = self._model
        try:
            if model.files is not None and model.files.num_loading:
                model.files.take()
            model.holds.take(model.core)
            events = model.core.step()
            model.holds.leave(events)
        except BaseException as error:
            self._death = error
            raise
        if not events and model.holds.num_held:
            time.sleep(_POLL_SECONDS)  # an adapter is being read
        return events

    def _clear(self, names: Sequence[str]) -> None:
        """End everything that still runs when a call ends, for whatever reason."""
        table = self._table
        aborts = [abort for name in names for abort in table.close(name)]
        if self._death is None:
            for abort in aborts:
                self._model.core.on_event(abort)
        while self._death is None and self._model.core.has_work:
            for event in self._step():
                table.receive(event)  # the last statistics of what a stop string ended


def place(index: int, count: int) -> str:
    """Name the prompt that a message is about, where there are several."""
    return f"prompts[{index}]: " if count > 1 else ""


def first_error(outputs: Sequence[RequestOutput]) -> tuple[int, str] | None:
    """Return the index and the message of the first request that failed."""
    for index, output in enumerate(outputs):
        for each in output.outputs:
            if each.error is not None:
                return index, each.error
    return None
