"""`AsyncLLM`: the same engine as a stream of outputs for each of many callers.

The engine runs in a thread, or in a process of its own that is begun again when it dies; either
way its events come to the event loop. Callers' queues are bounded by what they asked for: at most
one output waits for each, since a later one replaces an earlier that nobody has taken (or is
joined to it).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from octavo.api.embeddings import asking_for, embedded
from octavo.api.outputs import (
    CompletionOutput,
    EmbeddingRequestOutput,
    EngineDeadError,
    RequestError,
    RequestOutput,
)
from octavo.api.prompts import Prompt, read_prompt
from octavo.api.requests import PLAIN, FailedRequestError, Options
from octavo.api.text_model import TextModel
from octavo.client.client import EngineClient
from octavo.client.inline import InlineClient
from octavo.client.restart_policy import Timing
from octavo.core.config import ConfigError
from octavo.core.request import FAILURES, Abort, Event, Pause, ResetPrefixCache, Resume, TokenEvent
from octavo.core.sampling_params import (
    LogitsProcessor,
    Pooling,
    RequestOutputKind,
    SamplingParams,
)
from octavo.core.snapshot import EngineSnapshot
from octavo.engine_arguments import EngineArguments, read_arguments
from octavo.loader import DEFAULT_MODEL
from octavo.text.tokenizer import Tokenizer
from octavo.wire.facts import EngineFacts

log = logging.getLogger(__name__)


@dataclass
class _Caller:
    """Where one request's outputs wait for whoever asked."""

    kind: RequestOutputKind
    take: Callable[[RequestOutput], bool] | None = None  # for who need not be woken
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    output: RequestOutput | None = None
    error: Exception | None = None

    def put(self, output: RequestOutput) -> None:
        if self.output is None:
            if self.take is not None and self.take(output):
                return
        elif self.kind is RequestOutputKind.DELTA:
            output = _joined(self.output, output)
        self.output = output
        self.ready.set()

    def fail(self, error: Exception) -> None:
        self.error = error
        self.ready.set()


class AsyncLLM:
    """A model for concurrent callers in one event loop at a time; `close` it when done.

    `engine` says where it runs: "inline" in a thread of this process, "process" in one of its
    own, so that its death loses no request. `timing` bounds how long that one may take for what.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] = DEFAULT_MODEL,
        *,
        engine: Literal["inline", "process"] = "inline",
        timing: Timing | None = None,
        logits_processors: Mapping[str, LogitsProcessor] | None = None,
        **options: Any,
    ) -> None:
        arguments = read_arguments(model, options)
        client = _start(engine, arguments, timing, logits_processors)
        self._settle(client, arguments, tuple(logits_processors or ()))

    @classmethod
    def over(
        cls,
        client: EngineClient,
        arguments: EngineArguments,
        tokenizer: Tokenizer | None = None,
    ) -> AsyncLLM:
        """One over an engine that is ready, whatever it is; `tokenizer`: if it has been read."""
        made = cls.__new__(cls)
        made._settle(client, arguments, (), tokenizer)
        return made

    def _settle(
        self,
        client: EngineClient,
        arguments: EngineArguments,
        processors: Sequence[str],
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self._client = client
        try:
            self._model = TextModel(client.facts, arguments, processors, tokenizer)
        except BaseException:
            client.close()
            raise
        self._callers: dict[str, _Caller] = {}
        self._num_requests = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_closed = False
        self._death: EngineDeadError | None = None

    @property
    def facts(self) -> EngineFacts:
        """What is known of the engine and its model."""
        return self._client.facts

    def snapshot(self) -> EngineSnapshot:
        """The engine's newest statistics."""
        return self._client.snapshot()

    def is_well(self) -> bool:
        """Whether there is an engine that shows signs of life."""
        return self._death is None and not self._is_closed and self._client.is_well()

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        options: Options = PLAIN,
        take: Callable[[RequestOutput], bool] | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """Outputs as they come. Leaving the loop early, or being cancelled, aborts the request.

        A request that is turned away or fails raises a RequestError here, and nowhere else.

        `take` spares most outputs the way through the event loop. It is offered each at the moment
        it comes, unless one before it still waits here, and says whether that was all; what it
        declines comes here, and it must decline the last one.
        """
        self._begin()
        model = self._model.table.model
        sampling = self._model.default_sampling() if sampling_params is None else sampling_params
        self._num_requests += 1
        name = request_id if request_id is not None else f"async-{self._num_requests}"
        if name in self._callers:  # it may have ended, and its caller not have seen it yet
            raise RequestError(f"request id {name!r} is in use")
        read = read_prompt(prompt, model.tokenizer, model.vocabulary)
        requests = self._model.table.open(name, read, sampling, self._model.now(), options)
        caller = self._callers[name] = _Caller(sampling.output_kind, take)
        try:
            self._send(*requests)
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
                self._send(*self._model.table.close(name))

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
        self._send(*(Abort(name) for name in self._model.table.names(request_id)))

    async def get_tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self._model.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's makers recommend."""
        return self._model.default_sampling()

    async def reset_prefix_cache(self) -> bool:
        """Share no KV computed before now; True, for that never fails."""
        self._begin()
        self._send(ResetPrefixCache())
        return True

    async def pause(self) -> None:
        """Let the engine plan nothing more; requests are taken, and wait."""
        self._begin()
        self._send(Pause())

    async def resume(self) -> None:
        """Go on after `pause`."""
        self._begin()
        self._send(Resume())

    def close(self) -> None:
        """Stop the engine; whoever still waits gets an EngineDeadError."""
        self._is_closed = True
        self._client.close()
        loop = self._loop
        if loop is None or loop.is_closed():
            self._abandon()
            return
        with contextlib.suppress(RuntimeError):  # it has closed this very moment
            loop.call_soon_threadsafe(self._fail_all)

    def shutdown(self) -> None:
        """The same as `close`."""
        self.close()

    # between callers and engine

    def _begin(self) -> None:
        """Belong to the running loop; an error if there is no engine, or another loop has it."""
        loop = asyncio.get_running_loop()
        if self._death is not None:
            raise self._obituary()
        if self._is_closed:
            raise EngineDeadError("the engine is closed")
        if self._loop is loop:
            return
        if self._loop is not None and not self._loop.is_closed():
            raise RuntimeError(
                "this AsyncLLM is in use in another event loop; use it from that one, or "
                "make one for each loop"
            )
        self._loop = loop
        self._client.attach(self._deliver, self._die)
        self._send(*self._abandon())

    def _send(self, *events: Event) -> None:
        if events:
            self._client.send(events)

    def _abandon(self) -> list[Abort]:
        """Forget the callers of a loop that has ended: what the engine must drop."""
        aborts = [abort for name in self._callers for abort in self._model.table.close(name)]
        self._callers.clear()
        return aborts

    def _die(self, error: EngineDeadError) -> None:
        """In the event loop: there is no engine any more."""
        self._death = error
        self._fail_all()

    def _fail_all(self) -> None:
        for caller in self._callers.values():
            caller.fail(self._obituary())

    def _obituary(self) -> EngineDeadError:
        """For each who waits one of his own, since raising an error writes in it."""
        if self._death is None:
            return EngineDeadError("the engine is closed")
        error = EngineDeadError(str(self._death))
        error.__cause__ = self._death.__cause__
        return error

    def _deliver(self, events: Sequence[TokenEvent]) -> None:
        """In the event loop: hand events on to those who wait for them."""
        owner = self._model.table.owner
        for event in events:
            name = owner(event.request_id)  # before it may be at its end
            try:
                self._hand_on(event)
            except Exception as error:  # it must not keep the others from those who wait for them
                log.exception("an event of request %s could not be handed on", event.request_id)
                if name is not None:
                    self._fail(name, "error", f"{type(error).__name__}: {error}")

    def _hand_on(self, event: TokenEvent) -> None:
        output, aborts = self._model.table.receive(event)
        if aborts:
            self._send(*aborts)
        caller = None if output is None else self._callers.get(output.request_id)
        if output is None or caller is None:
            return
        for each in output.outputs:
            if each.error is not None:
                reason = event.finish_reason if event.finish_reason in FAILURES else "error"
                self._fail(output.request_id, str(reason), each.error)
                return
        caller.put(output)

    def _fail(self, name: str, reason: str, message: str) -> None:
        """End a request, with all its continuations."""
        self._send(*self._model.table.close(name))
        if name in self._callers:
            self._callers[name].fail(FailedRequestError(name, reason, message))


def _start(
    engine: str,
    arguments: EngineArguments,
    timing: Timing | None,
    processors: Mapping[str, LogitsProcessor] | None,
) -> EngineClient:
    if engine == "inline":
        return InlineClient.start(arguments, processors)
    if engine != "process":
        raise ConfigError(f"engine={engine!r} must be 'inline' or 'process'")
    if processors:
        raise ConfigError(
            "logits_processors are functions, which do not cross into the engine's process; "
            "use engine='inline', or leave them out"
        )
    from octavo.client.process import launch_engine  # imports ZeroMQ

    client = launch_engine(arguments, timing)
    client.start()
    return client


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
