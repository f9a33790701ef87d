"""Runs the prompts of one call through an engine in the caller's own thread, to their ends."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo.api.interrupts import HeldInterrupts
from octavo.api.local_model import LocalModel
from octavo.api.outputs import EngineDeadError, RequestError, RequestOutput
from octavo.api.progress import Progress
from octavo.api.prompts import Input
from octavo.api.requests import Options
from octavo.core.request import Event, Request, TokenEvent
from octavo.core.sampling_params import RequestOutputKind, SamplingParams

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OfflineRequest:
    """One prompt and what is asked for it."""

    prompt: Input
    sampling: SamplingParams
    options: Options


class OfflineRunner:
    """An engine that works while it is called, for one call at a time."""

    def __init__(self, model: LocalModel) -> None:
        self._model = model
        self._num_requests = 0
        self._death: BaseException | None = None  # what broke a step off
        self._is_closed = False
        self._busy = threading.Lock()

    def next_name(self) -> str:
        """Request ids count from 1."""
        self._num_requests += 1
        return str(self._num_requests)

    def run(
        self, jobs: Sequence[OfflineRequest], *, shows_progress: bool, is_trusted: bool
    ) -> list[RequestOutput]:
        """Everybody's whole output, in the order of the jobs.

        All are checked before any begins. One that then fails has the finish reason "error" and
        the message; the others are whole. `is_trusted` jobs are ours: not bound by max_logprobs,
        and not told apart in messages.
        """
        self._acquire()
        held, names = HeldInterrupts(), list[str]()
        try:
            with held:
                try:
                    backlog = self._open(jobs, names, is_trusted, held)
                    return self._drive(names, backlog, shows_progress, held)
                finally:
                    self._clear(names)
        except KeyboardInterrupt as error:
            if held.was_forced:  # it may have struck in the middle of anything
                self._death = error
            raise
        finally:
            self._busy.release()

    def send(self, event: Event) -> None:
        """Hand a command to the engine between two calls."""
        self._acquire()
        try:
            self._model.core.on_event(event)
        finally:
            self._busy.release()

    def close(self) -> None:
        """Let go of the engine; later calls are refused."""
        if self._is_closed:
            return
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("this LLM is at work in another call; wait for its end to close it")
        self._is_closed = True
        self._model.release()
        self._busy.release()

    def _acquire(self) -> None:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError(
                "this LLM is at work in another call; give it all prompts in one call, "
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
                "a step of this LLM was broken off by an error or Ctrl-C; make a new LLM"
            ) from self._death

    def _open(
        self,
        jobs: Sequence[OfflineRequest],
        names: list[str],
        is_trusted: bool,
        held: HeldInterrupts,
    ) -> deque[Request]:
        """Check all of them; what is to be handed to the core."""
        table, arrival = self._model.table, self._model.now()
        backlog = deque[Request]()
        for index, job in enumerate(jobs):
            held.check()
            names.append(self.next_name())
            sampling = job.sampling
            if isinstance(sampling, SamplingParams):  # if it is not, `open` says so
                # Nobody sees what comes before the end, so it need not be put together.
                sampling = replace(sampling, output_kind=RequestOutputKind.FINAL_ONLY)
            try:
                opened = table.open(
                    names[-1], job.prompt, sampling, arrival, job.options, is_trusted
                )
            except RequestError as error:
                count = 1 if is_trusted else len(jobs)
                raise RequestError(place(index, count) + str(error)) from None
            backlog.extend(opened)
        return backlog

    def _drive(
        self,
        names: Sequence[str],
        backlog: deque[Request],
        shows_progress: bool,
        held: HeldInterrupts,
    ) -> list[RequestOutput]:
        core, table = self._model.core, self._model.table
        outputs: dict[str, RequestOutput] = {}
        progress = Progress(len(names), shows_progress)
        while len(outputs) < len(names):
            while backlog and self._has_room(backlog[0]):
                core.on_event(backlog.popleft())
            events = self._step()
            held.check()
            for event in events:
                output, aborts = table.receive(event)
                for abort in aborts:
                    core.on_event(abort)
                if output is not None and output.finished:
                    outputs[output.request_id] = output
            progress.show(len(outputs), sum(len(event.tokens) for event in events))
        progress.close()
        return [outputs[name] for name in names]

    def _has_room(self, request: Request) -> bool:
        """Whether the core's queue takes it; what it turned away would be lost."""
        config, queue = self._model.engine.config.core, self._model.core.scheduler.queue
        if not queue.num_waiting:
            return True
        num_tokens = queue.num_tokens + len(request.prompt)
        is_short = queue.num_waiting < config.max_num_waiting
        return is_short and num_tokens <= config.max_waiting_tokens

    def _step(self) -> list[TokenEvent]:
        """A step; what it raises is the engine's end, for its result will never come."""
        try:
            return self._model.core.step()
        except BaseException as error:
            self._death = error
            raise

    def _clear(self, names: Sequence[str]) -> None:
        """Nothing must go on running when a call ends, however it does."""
        table = self._model.table
        aborts = [abort for name in names for abort in table.close(name)]
        if self._death is None:
            for abort in aborts:
                self._model.core.on_event(abort)
        while self._death is None and self._model.core.has_work:
            for event in self._step():
                table.receive(event)  # the last account of what a stop string ended


def place(index: int, count: int) -> str:
    """Which of several prompts a message is about."""
    return f"prompts[{index}]: " if count > 1 else ""


def first_error(outputs: Sequence[RequestOutput]) -> tuple[int, str] | None:
    """The first request that failed, and why."""
    for index, output in enumerate(outputs):
        for each in output.outputs:
            if each.error is not None:
                return index, each.error
    return None
