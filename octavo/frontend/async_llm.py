"""`AsyncLLM`: the same engine as a stream of outputs for each of many callers.

The engine runs in a thread of its own: it takes what callers have asked for, steps, and hands
events to the event loop. Callers' queues are bounded by what they asked for: at most one output
waits for each, since a later one replaces an earlier that nobody has taken (or is joined to it).
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from octavo.config import read_arguments
from octavo.core.request import Abort, Event, ResetPrefixCache, TokenEvent
from octavo.core.sampling_params import (
    LogitsProcessor,
    Pooling,
    RequestOutputKind,
    SamplingParams,
)
from octavo.frontend.desk import FAILURES, PLAIN, FailedRequestError, Options
from octavo.frontend.embeddings import asking_for, embedded
from octavo.frontend.inputs import Prompt, read_prompt
from octavo.frontend.model import LocalModel
from octavo.frontend.outputs import (
    CompletionOutput,
    EmbeddingRequestOutput,
    EngineDeadError,
    RequestError,
    RequestOutput,
)
from octavo.loader import DEFAULT_MODEL

log = logging.getLogger(__name__)


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
    """A model for concurrent callers in one event loop at a time; `close` it when done."""

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        logits_processors: Mapping[str, LogitsProcessor] | None = None,
        **options: Any,
    ) -> None:
        self._model = LocalModel(read_arguments(model, options), logits_processors)
        self._callers: dict[str, _Caller] = {}
        self._num_requests = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._inbox: deque[Event] = deque()  # bounded by the callers: each adds n requests
        # Guards the inbox, and which loop it is that the callers live in.
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
        """Outputs as they come. Leaving the loop early, or being cancelled, aborts the request.

        A request that is turned away or fails raises a RequestError here, and nowhere else.
        """
        self._start()
        model = self._model.desk.model
        sampling = self._model.default_sampling() if sampling_params is None else sampling_params
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
            if self._callers.get(name) is caller:  # its loop may have ended before it did
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

    async def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._model.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's makers recommend."""
        return self._model.default_sampling()

    async def reset_prefix_cache(self) -> bool:
        """Share no KV computed before now; True, for that never fails."""
        self._start()
        self._send(ResetPrefixCache())
        return True

    def close(self) -> None:
        """Stop the engine's thread; whoever still waits gets an EngineDeadError."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()
        self._model.release()

    def shutdown(self) -> None:
        """The same as `close`."""
        self.close()

    # between the event loop and the thread

    def _start(self) -> None:
        loop = asyncio.get_running_loop()
        if self._death is not None:
            raise EngineDeadError("the engine has stopped after an error") from self._death
        if self._closing:
            raise EngineDeadError("the engine is closed")
        with self._wake:
            if self._loop is None:
                self._thread.start()
            elif self._loop is not loop:
                if not self._loop.is_closed():
                    raise RuntimeError(
                        "this AsyncLLM is in use in another event loop; use it from that one, or "
                        "make one for each loop"
                    )
                self._inbox.extend(self._abandon())
                self._wake.notify()
            self._loop = loop

    def _send(self, *events: Event) -> None:
        if events:
            with self._wake:
                self._inbox.extend(events)
                self._wake.notify()

    def _abandon(self) -> list[Abort]:
        """Forget the callers of a loop that has ended: what the engine must drop."""
        aborts = [abort for name in self._callers for abort in self._model.desk.close(name)]
        self._callers.clear()
        return aborts

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
                    for abort in self._call_loop(events):
                        core.on_event(abort)
        except BaseException as error:  # the thread's boundary: callers must hear of it
            log.exception("the engine's thread has ended")
            self._death = error
        self._call_loop([])

    def _call_loop(self, events: list[TokenEvent]) -> list[Abort]:
        """Hand events to the loop; if it has ended, what the engine must drop."""
        with self._wake:
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(self._deliver, events)
            except RuntimeError:  # closed, perhaps this very moment, and its callers with it
                return self._abandon()
        return []

    def _deliver(self, events: list[TokenEvent]) -> None:
        """In the event loop: hand events on to those who wait for them."""
        for event in events:
            name = self._model.desk.owner(event.request_id)
            try:
                self._hand_on(event)
            except Exception as error:  # it must not keep the others from those who wait for them
                log.exception("an event of request %s could not be handed on", event.request_id)
                if name is not None:
                    self._fail(name, "error", f"{type(error).__name__}: {error}")
        if self._death is not None or self._closing:
            why = "is closed" if self._death is None else "has stopped after an error"
            for caller in self._callers.values():
                dead = EngineDeadError(f"the engine {why}")
                dead.__cause__ = self._death
                caller.fail(dead)

    def _hand_on(self, event: TokenEvent) -> None:
        desk = self._model.desk
        output, aborts = desk.receive(event)
        self._send(*aborts)
        caller = None if output is None else self._callers.get(output.request_id)
        if output is None or caller is None:
            return
        messages = [each.error for each in output.outputs if each.error is not None]
        if not messages:
            caller.put(output)
            return
        reason = event.finish_reason if event.finish_reason in FAILURES else "error"
        self._fail(output.request_id, str(reason), messages[0])

    def _fail(self, name: str, reason: str, message: str) -> None:
        """End a request, with all its continuations."""
        self._send(*self._model.desk.close(name))
        if name in self._callers:
            self._callers[name].fail(FailedRequestError(name, reason, message))


def _joined(one: RequestOutput, other: RequestOutput) -> RequestOutput:
    """Two deltas as one; each may be of some of the continuations only."""
    outputs = {output.index: output for output in one.outputs}
    for output in other.outputs:
        before = outputs.get(output.index)
        outputs[output.index] = output if before is None else _continued(before, output)
    return replace(
        other,
        outputs=[outputs[index] for index in sorted(outputs)],
        prompt_logprobs=other.prompt_logprobs or one.prompt_logprobs,
        hidden_state=other.hidden_state or one.hidden_state,
    )


def _continued(first: CompletionOutput, second: CompletionOutput) -> CompletionOutput:
    logprobs = None if second.logprobs is None else [*(first.logprobs or ()), *second.logprobs]
    return replace(
        second,
        text=first.text + second.text,
        token_ids=first.token_ids + second.token_ids,
        logprobs=logprobs,
    )
