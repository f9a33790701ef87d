"""`AsyncLLM`: an engine for many concurrent callers, each with a stream of outputs.

The engine runs in a thread, or in a process of its own that is restarted when it dies; either way
its events arrive in the event loop. Each request's outputs go to its sink. An async iterator is
one kind of sink: at most one output waits in it, since a later one replaces or extends it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from array import array
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, cast

from msgspec import structs

from octavo.adapter_copies.opening import open_copies
from octavo.api.control import EngineControl
from octavo.api.outputs import EngineDeadError, RequestError, RequestOutput
from octavo.api.prompts import Input, Prompt
from octavo.api.requests import (
    PLAIN,
    CheckedRequest,
    FailedRequestError,
    Options,
    RequestTable,
    check_request,
)
from octavo.api.shapes import check_shape
from octavo.api.sinks import Sink, WaitingSink
from octavo.api.text_model import TextModel, named_tokenizer
from octavo.client.client import EngineClient
from octavo.client.restart_policy import Timing
from octavo.core.config import ConfigError
from octavo.core.request import (
    FAILURES,
    Abort,
    Request,
    TokenEvent,
)
from octavo.core.sampling_params import LogitsProcessor, SamplingParams
from octavo.loader import ModelFiles
from octavo.options import DEFAULT_MODEL
from octavo.options.engine import EngineArguments, read_arguments
from octavo.options.engines import ENGINES
from octavo.options.overrides import split_processors
from octavo.text.token_table import TokenTable

# What no more than some callers use is imported by the methods that they call.
if TYPE_CHECKING:
    from octavo.adapter_copies.copies import AdapterCopies
    from octavo.api.adapters import LoRARequest
    from octavo.api.pooling.outputs import EmbeddingRequestOutput, PoolingRequestOutput
    from octavo.api.pooling.params import PoolingParams
    from octavo.api.pooling.tasks import Task, Wanted
    from octavo.models.load import OpenedModel
    from octavo.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)


class AsyncLLM(EngineControl):
    """A model for concurrent callers in one event loop at a time; `close` it when done.

    `engine` selects where it runs: "inline" in a thread of this process, "process" in a process
    of its own, whose death loses no request. `timing` bounds the silence and the start of that
    process.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        engine: str = "inline",
        timing: Timing | None = None,
        logits_processors: Mapping[str, LogitsProcessor] | Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        named, classes = split_processors(logits_processors)
        arguments = read_arguments(model, {**options, **classes})
        arguments, copies = open_copies(arguments)
        tokenizers: list[Tokenizer] = []

        def load(opened: OpenedModel, source: ModelFiles) -> None:
            tokenizers.append(named_tokenizer(arguments, source, opened.checkpoint))

        try:
            client = _start(engine, arguments, timing, named, load)
        except BaseException:
            if copies is not None:
                copies.close()
            raise
        # An engine in a process of its own has loaded none here.
        tokenizer = tokenizers[0] if tokenizers else None
        self._settle(client, arguments, tuple(named or ()), tokenizer, copies=copies)

    @classmethod
    def over(
        cls,
        client: EngineClient,
        arguments: EngineArguments,
        tokenizer: TokenTable | None = None,
        source: ModelFiles | None = None,
        copies: AdapterCopies | None = None,
    ) -> AsyncLLM:
        """Return an AsyncLLM that uses an engine that is already running.

        Without `tokenizer` it is loaded, and without `source` the model's files are looked up. The
        copies of adapters are removed when it is closed.
        """
        made = cls.__new__(cls)
        made._settle(client, arguments, (), tokenizer, source, copies)
        return made

    def _settle(
        self,
        client: EngineClient,
        arguments: EngineArguments,
        processors: Sequence[str],
        tokenizer: TokenTable | None = None,
        source: ModelFiles | None = None,
        copies: AdapterCopies | None = None,
    ) -> None:
        super().__init__(client)
        self.copies = copies  # of adapters; None: there are none
        self.first_engine = arguments.first_engine  # its number among those of all servers
        try:
            self.model = TextModel(client.facts, arguments, processors, tokenizer, source)
        except BaseException:
            client.close()
            self._close_copies()
            raise
        self._table = RequestTable(self.model, copies)
        self._sinks: dict[str, Sink] = {}  # until `discard`
        self._num_requests = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._shape_lock: asyncio.Lock  # of that loop

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: LoRARequest | None = None,
        options: Options = PLAIN,
    ) -> AsyncIterator[RequestOutput]:
        """Yield outputs as they come. Leaving the loop early, or cancelling, aborts the request.

        A request that is rejected or fails raises a RequestError here, and nowhere else.
        """
        self.attach()
        await check_shape(self.model, sampling_params, self._shape_lock)
        with contextlib.ExitStack() as stack:
            if lora_request is not None:
                from octavo.api.adapters import taken_in_thread

                lora = await taken_in_thread(self.copies, lora_request, stack)
                options = structs.replace(options, lora=lora)
            request = self.check(prompt, sampling_params, options)
            sink = WaitingSink(request.sampling.output_kind)
            name = self.submit(request, sink, request_id)
            stack.callback(self.discard, name, sink)
            while True:
                output = await sink.get()
                yield output
                if output.finished:
                    return

    def check(
        self,
        prompt: Prompt | Input,
        sampling_params: SamplingParams | None = None,
        options: Options = PLAIN,
    ) -> CheckedRequest:
        """Check a request against every bound; raise RequestError if it cannot be served.

        A shape that is new to this model is waited for, in `generate` without holding the loop.
        """
        sampling = self.model.defaults if sampling_params is None else sampling_params
        return check_request(self.model, prompt, sampling, options)

    def wrap_client(self, wrap: Callable[[EngineClient], EngineClient]) -> None:
        """Put a client around the engine's; before `attach`."""
        assert self._loop is None, "events already pass"
        self._client = wrap(self._client)

    def seeded(self, request: CheckedRequest, num_before: int = 0) -> CheckedRequest:
        """Return a request with the seed that it gets if `num_before` requests are begun first."""
        return self._table.seeded(request, num_before)

    def submit(self, request: CheckedRequest, sink: Sink, request_id: str | None = None) -> str:
        """Begin a request whose outputs go to `sink`; return its id, which `discard` ends."""
        name, requests = self._open(request, sink, request_id)
        self._send_or_discard(name, sink, requests)
        return name

    async def resubmit(
        self,
        request: CheckedRequest,
        sink: Sink,
        request_id: str,
        past: Sequence[Iterable[TokenEvent]],
    ) -> None:
        """Submit a request again, to be continued behind what an earlier engine has emitted.

        `past` has the events of each of its `n` sequences. They become outputs, with breaks for
        other tasks between them; then the engine continues those that have not ended.
        """
        name, requests = self._open(request, sink, request_id)
        left: list[Request] = []
        for each, events in zip(requests, past, strict=True):
            emitted = array("i")
            state: float | None = None
            for event in events:
                if self._sinks.get(name) is not sink:
                    return
                self._deliver([event._replace(request_id=each.request_id)])
                emitted.extend(event.tokens)
                state = event.sampler_state if event.sampler_state is not None else state
                await asyncio.sleep(0)
            if self._table.is_over(each.request_id):
                continue
            parent = each.parent_id
            if not left or left[0].request_id != parent:  # that has ended
                parent = None
            resumed = bool(emitted)
            again = replace(each, emitted=emitted, resumed=resumed, parent_id=parent)
            left.append(replace(again, sampler_state=state))
        if left and self._sinks.get(name) is sink:
            self._send_or_discard(name, sink, left)

    def _open(
        self, request: CheckedRequest, sink: Sink, request_id: str | None
    ) -> tuple[str, list[Request]]:
        """Add a request to the table; return its id and what the engine must be given."""
        if self._loop is not asyncio.get_running_loop() or self._death or self._is_closed:
            self.attach()
        self._num_requests += 1
        name = request_id if request_id is not None else f"async-{self._num_requests}"
        if name in self._sinks:  # it may have ended, and its caller not have seen that yet
            raise RequestError(f"request id {name!r} is in use", param="request_id")
        requests = self._table.open(name, request, time.monotonic())
        self._sinks[name] = sink
        return name, requests

    def _send_or_discard(self, name: str, sink: Sink, requests: Sequence[Request]) -> None:
        try:
            self._client.send(requests)
        except BaseException:
            self.discard(name, sink)
            raise

    def discard(self, request_id: str, sink: Sink) -> None:
        """Forget a request and its sink; abort it unless it has ended."""
        if self._sinks.get(request_id) is sink:  # else the loop that it belonged to has ended
            del self._sinks[request_id]
            self._send(*self._table.close(request_id))

    async def embed(
        self,
        prompt: Prompt,
        request_id: str | None = None,
        *,
        pooling_params: PoolingParams | None = None,
        lora_request: LoRARequest | None = None,
        options: Options = PLAIN,
    ) -> EmbeddingRequestOutput:
        """Return a prompt as a vector, like `LLM.embed`."""
        from octavo.api.pooling.results import embedded

        more = {"lora_request": lora_request, "options": options}
        output, asked = await self._pool(prompt, "embed", pooling_params, request_id, more)
        return embedded(output, asked)

    async def encode(
        self,
        prompt: Prompt,
        request_id: str | None = None,
        *,
        pooling_params: PoolingParams | None = None,
        pooling_task: Task | None = None,
        lora_request: LoRARequest | None = None,
        options: Options = PLAIN,
    ) -> PoolingRequestOutput:
        """Return what a task makes of a prompt, like `LLM.encode`."""
        from octavo.api.pooling.results import pooled
        from octavo.api.pooling.tasks import default_task

        task = pooling_task or default_task(self.model.facts, "plain")
        more = {"lora_request": lora_request, "options": options}
        output, asked = await self._pool(prompt, task, pooling_params, request_id, more)
        return pooled(output, asked)

    async def _pool(
        self,
        prompt: Prompt,
        task: Task,
        params: PoolingParams | None,
        request_id: str | None,
        more: dict[str, Any],
    ) -> tuple[RequestOutput, Wanted]:
        from octavo.api.pooling.inputs import cut
        from octavo.api.pooling.tasks import DEFAULTS, wanted

        params = params or DEFAULTS
        asked = wanted(self.model.facts, task, params)
        read = cut(prompt, self.model, params)
        stream = self.generate(read, asked.sampling, request_id, **more)
        outputs = [output async for output in stream]
        return outputs[-1], asked

    async def abort(self, request_id: str) -> None:
        """End a request; its stream ends with the text generated so far."""
        self._send(*(Abort(name) for name in self._table.names(request_id)))

    async def get_tokenizer(self) -> Any:
        """Return the model's tokenizer."""
        return self.model.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """Return the sampling parameters that the model's makers recommend."""
        return self.model.defaults

    def close(self) -> None:
        """Stop the engine; callers that still wait get an EngineDeadError."""
        self._is_closed = True
        self._client.close()
        self._close_copies()
        loop = self._loop
        if loop is None or loop.is_closed():
            self._abandon()
            return
        with contextlib.suppress(RuntimeError):  # the loop was closed at this very moment
            loop.call_soon_threadsafe(self._fail_all)

    def _close_copies(self) -> None:
        if self.copies is not None:
            self.copies.close()

    def shutdown(self) -> None:
        """Stop the engine, like `close`."""
        self.close()

    def attach(self) -> None:
        """Bind the engine to the running event loop, which then also supervises it.

        All other methods do so by themselves. Raise an error if there is no engine any more, or
        if another running loop uses it.
        """
        loop = asyncio.get_running_loop()
        if self._death is not None or self._is_closed:
            raise self._dead_error()
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError(
                "this AsyncLLM is in use in another event loop; use it from that one, or "
                "make one for each loop"
            )
        self._loop, self._shape_lock = loop, asyncio.Lock()
        self._client.attach(self._deliver, self._die)
        self._send(*self._abandon())

    # between sinks and engine

    def _send(self, *events: Abort) -> None:
        if events:
            self._client.send(events)

    def _abandon(self) -> list[Abort]:
        """Forget the requests of a loop that has ended; return what the engine must drop."""
        aborts = [abort for name in self._sinks for abort in self._table.close(name)]
        self._sinks.clear()
        return aborts

    def _die(self, error: EngineDeadError) -> None:
        """Fail all requests. The client calls this in the event loop when the engine is lost."""
        self._death = error
        self._fail_all()

    def _fail_all(self) -> None:
        """Fail the open requests; a finished one may have an output that its reader still takes."""
        for name, sink in self._sinks.items():
            if name in self._table:
                sink.fail(self._dead_error())

    def _deliver(self, events: Sequence[TokenEvent]) -> None:
        """Turn events into outputs for their sinks. The client calls this in the event loop."""
        for event in events:
            try:
                output, aborts = self._table.receive(event)
                if aborts:
                    self._send(*aborts)
                sink = None if output is None else self._sinks.get(output.request_id)
                if output is None or sink is None:
                    continue
                for each in output.outputs:
                    if each.error is not None:
                        reason = event.finish_reason if event.finish_reason in FAILURES else "error"
                        self._fail(output.request_id, str(reason), each.error)
                        break
                else:
                    sink.put(output)
            except Exception as error:  # it must not keep other requests from their events
                log.exception("an event of request %s could not be delivered", event.request_id)
                name = event.request_id.rpartition("#")[0]
                self._fail(name, "error", f"{type(error).__name__}: {error}")

    def _fail(self, name: str, reason: str, message: str) -> None:
        """End a request, with all its continuations."""
        self._send(*self._table.close(name))
        if name in self._sinks:
            self._sinks[name].fail(FailedRequestError(name, reason, message))


def _start(
    engine: str,
    arguments: EngineArguments,
    timing: Timing | None,
    processors: Mapping[str, LogitsProcessor] | None,
    meanwhile: Callable[[OpenedModel, ModelFiles], None],
) -> EngineClient:
    if engine not in ENGINES:
        names = " or ".join(map(repr, sorted(ENGINES)))
        raise ConfigError(f"engine={engine!r} must be {names}")
    module = import_module(ENGINES[engine])
    return cast("EngineClient", module.start(arguments, timing, processors, meanwhile))
