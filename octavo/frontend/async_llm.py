"""`AsyncLLM`: the same engine as a stream of outputs for each of many callers.

The engine runs in a thread of its own: it takes what callers have asked for, steps, and hands
events to the event loop. Callers' queues are bounded by what they asked for: at most one output
waits for each, since a later one replaces an earlier that nobody has taken (or is joined to it).
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.config import EngineArguments
from octavo.core.request import Abort, Event, TokenEvent
from octavo.core.sampling_params import (
    LogitsProcessor,
    Pooling,
    RequestOutputKind,
    SamplingParams,
)
from octavo.frontend.desk import PLAIN, FailedRequestError, Options
from octavo.frontend.embeddings import asking_for, embedded
from octavo.frontend.inputs import Prompt, read_prompt
from octavo.frontend.model import LocalModel
from octavo.frontend.outputs import EmbeddingRequestOutput, RequestError, RequestOutput
from octavo.loader import DEFAULT_MODEL


class EngineDeadError(RuntimeError):
    """The engine is closed, or its thread ended with an error, which is chained."""


@dataclass
class _Caller:
    """Where one request's outputs wait for whoever asked."""

    kind: RequestOutputKind
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    output: RequestOutput | None = None
    error: Exception | None = None

    def put(self, output: RequestOutput) -> None:
        if self.output is not None and self.kind is RequestOutputKind.DELTA:
            output = _joined(self.output, output)
        self.output = output
        self.ready.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.ready.set()


class AsyncLLM:
    """A model for concurrent callers in one event loop; `close` it when done."""

    def __init__(
        self,
        model: str = DEFAULT_MODEL,
        *,
        logits_processors: Mapping[str, LogitsProcessor] | None = None,
        **options: Any,
    ) -> None:
        self._model = LocalModel(EngineArguments(model=model, **options), logits_processors)
        self._callers: dict[str, _Caller] = {}
        self._num_requests = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: deque[Event] = deque()  # bounded by the callers: each adds n requests
        self._wake = threading.Condition()
        self._closing = False
        self._death: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="octavo engine", daemon=True)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        options: Options = PLAIN,
    ) -> AsyncIterator[RequestOutput]:
        """Outputs as they come. Leaving the loop early, or being cancelled, aborts the request."""
        self._start()
        model = self._model.desk.model
        sampling = sampling_params or self._model.default_sampling()
        self._num_requests += 1
        name = request_id if request_id is not None else f"async-{self._num_requests}"
        if name in self._callers:  # it may have ended, and its caller not have seen it yet
            raise RequestError(f"request id {name!r} is in use")
        read = read_prompt(prompt, model.tokenizer, model.vocabulary)
        requests = self._model.desk.open(name, read, sampling, self._model.now(), options)
        caller = self._callers[name] = _Caller(sampling.output_kind)
        self._send(*requests)
        try:
            while True:
                await caller.ready.wait()
                caller.ready.clear()
                if caller.error is not None:
                    raise caller.error
                output, caller.output = caller.output, None
                assert output is not None
                yield output
                if output.finished:
                    return
        finally:
            del self._callers[name]
            self._send(*self._model.desk.close(name))

    async def embed(
        self,
        prompt: Prompt,
        request_id: str | None = None,
        *,
        pooling: Pooling = "last",
        normalize: bool = True,
        options: Options = PLAIN,
    ) -> EmbeddingRequestOutput:
        """A prompt as a vector of length one, as of `LLM.embed`."""
        asked = asking_for(pooling)
        outputs = [o async for o in self.generate(prompt, asked, request_id, options=options)]
        return embedded(outputs[-1], normalize)

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with what it has."""
        self._send(*(Abort(name) for name in self._model.desk.names(request_id)))

    def close(self) -> None:
        """Stop the engine's thread; whoever still waits gets an EngineDeadError."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    # between the event loop and the thread

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._death is not None:
            raise EngineDeadError("the engine has stopped after an error") from self._death
        if self._closing:
            raise EngineDeadError("the engine is closed")
        if self._loop is None:
            self._loop = loop
            self._thread.start()
        elif self._loop is not loop:
            raise RuntimeError("AsyncLLM belongs to the event loop it was first used in")

    def _send(self, *events: Event) -> None:
        if events:
            with self._wake:
                self._inbox.extend(events)
                self._wake.notify()

    def _run(self) -> None:
        core = self._model.core
        try:
            while True:
                with self._wake:
                    while not (self._inbox or self._closing or core.has_work):
                        self._wake.wait()
                    if self._closing:
                        break
                    inbox, self._inbox = self._inbox, deque()
                for event in inbox:
                    core.on_event(event)
                events = core.step()
                if events:
                    self._call_loop(events)
        except BaseException as error:  # the thread's boundary: callers must hear of it
            self._death = error
        self._call_loop([])

    def _call_loop(self, events: list[TokenEvent]) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._deliver, events)

    def _deliver(self, events: list[TokenEvent]) -> None:
        """In the event loop: hand events on to those who wait for them."""
        for event in events:
            try:
                output, aborts = self._model.desk.receive(event)
            except FailedRequestError as error:
                self._send(*error.aborts)
                if error.request_id in self._callers:
                    self._callers[error.request_id].fail(error)
                continue
            self._send(*aborts)
            if output is not None and output.request_id in self._callers:
                self._callers[output.request_id].put(output)
        if self._death is not None or self._closing:
            why = "is closed" if self._death is None else "has stopped after an error"
            for caller in self._callers.values():
                dead = EngineDeadError(f"the engine {why}")
                dead.__cause__ = self._death
                caller.fail(dead)


def _joined(one: RequestOutput, other: RequestOutput) -> RequestOutput:
    """Two deltas as one."""
    outputs = []
    for first, second in zip(one.outputs, other.outputs, strict=True):
        logprobs = None if second.logprobs is None else [*(first.logprobs or ()), *second.logprobs]
        outputs.append(
            replace(
                second,
                text=first.text + second.text,
                token_ids=first.token_ids + second.token_ids,
                logprobs=logprobs,
            )
        )
    return replace(other, outputs=outputs)
