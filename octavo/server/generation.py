"""One request through the engine: admitted, streamed or gathered, counted, and always ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from octavo.api.outputs import EngineDeadError, RequestError, RequestOutput
from octavo.api.requests import FailedRequestError, Options
from octavo.core.sampling_params import SamplingParams
from octavo.observe.explain import Record, parameters_told
from octavo.server.admission import Ticket
from octavo.server.http.deadline import Supervisor
from octavo.server.http.errors import ApiError, ClientGoneError, internal, invalid, unavailable
from octavo.server.http.exchange import Exchange, encode
from octavo.server.http.sse import EventStream
from octavo.server.schema.usage import PromptTokensDetails, Usage
from octavo.server.server import ActiveRequest
from octavo.text.prompt_worker import PreparedPrompt

log = logging.getLogger(__name__)

LOGGED_CHARACTERS = 16_384  # of one prompt


class Shape(Protocol):
    """How a dialect writes what the engine gives."""

    def opening(self) -> Iterable[Any]:
        """Chunks before the first token."""

    def payloads(
        self, prompt_index: int, output: RequestOutput, usage: Callable[[], Usage]
    ) -> Iterable[bytes]:
        """Chunks for what is new, as they are written; `usage` is seldom asked for at each."""

    def closing(self, usage: Usage, explanation: dict[str, Any] | None) -> Iterable[Any]:
        """Chunks behind the last token."""

    def whole(
        self, outputs: list[RequestOutput], usage: Usage, explanation: dict[str, Any] | None
    ) -> Any:
        """The response of a request that is not streamed."""


@dataclass(slots=True)
class GenerationRequest:
    """What is to be generated for one HTTP request."""

    prompts: list[PreparedPrompt]
    sampling: SamplingParams
    shape: Shape
    is_stream: bool
    options: Options
    explains: bool = False
    drops_output: bool = False  # the one token that the engine must give was not asked for


@dataclass(slots=True)
class _Count:
    """Tokens so far."""

    prompt: int
    generated: int = 0
    cached: dict[int, int] = field(default_factory=dict)  # by prompt

    def usage(self) -> Usage:
        return Usage(
            prompt_tokens=self.prompt,
            completion_tokens=self.generated,
            total_tokens=self.prompt + self.generated,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self.cached.values())),
        )


class Generation:
    """One request on its way through the engine."""

    def __init__(
        self, exchange: Exchange, ticket: Ticket, plan: GenerationRequest, supervisor: Supervisor
    ) -> None:
        server = self._server = exchange.server
        self._call = exchange
        self._ticket = ticket
        self._plan = plan
        num_prompt = sum(len(prompt.token_ids) for prompt in plan.prompts)
        self._count = _Count(num_prompt)
        self._last_at = server.clock()
        server.num_flights += 1
        name = f"{exchange.request_id}-{server.num_flights}"
        self._ids = tuple(f"{name}.{index}" for index in range(len(plan.prompts)))
        self.record = record = Record(exchange.request_id, exchange.owner, exchange.began)
        record.template_seconds = sum(prompt.template_seconds for prompt in plan.prompts)
        record.tokenize_seconds = sum(prompt.tokenize_seconds for prompt in plan.prompts)
        record.prepared_at = self._last_at
        record.num_prompt_tokens = num_prompt
        record.parameters = parameters_told(
            plan.sampling, priority=plan.options.priority, stream=plan.is_stream
        )
        self._flight = ActiveRequest(record, self._ids, plan.is_stream, supervisor.stop)
        self._outlet: EventStream | None = None  # where outputs are written as they come
        self._num_held = 0  # outputs that came, and are the task's to write

    async def run(self) -> None:
        """Admit, generate, answer."""
        server, plan, record = self._server, self._plan, self.record
        server.recent.add(record)
        server.active[self._ids[0]] = self._flight
        record.outcome = "failed"
        if server.config.log_prompts:
            self._log_prompts()
        try:
            num_sequences = plan.sampling.n * len(plan.prompts)
            await self._ticket.wait(self._count.prompt, num_sequences, plan.options.priority)
            record.entered_at = self._last_at = server.clock()
            self._observe_parameters()
            if plan.is_stream:
                await self._stream()
            else:
                await self._gather()
            record.outcome = "finished"
        except asyncio.CancelledError:
            record.outcome = "cancelled"
            raise
        finally:
            record.ended_at = server.clock()
            record.num_output_tokens = self._count.generated
            del server.active[self._ids[0]]
            self._observe_end()

    # the two ways of answering

    async def _gather(self) -> None:
        outputs: dict[int, RequestOutput] = {}
        async with aclosing(self._outputs()) as stream:
            async for index, output in stream:
                self._note(index, output)
                outputs[index] = output
        ordered = [outputs[index] for index in sorted(outputs)]
        body = self._plan.shape.whole(ordered, self._count.usage(), self._explanation())
        self.record.first_byte_at = self._server.clock()
        await self._call.respond(encode(body))

    async def _stream(self) -> None:
        stream = EventStream(self._call)
        try:
            async with aclosing(self._outputs()) as outputs:
                await self._stream_from(outputs, stream)
        except (asyncio.CancelledError, ClientGoneError):
            raise
        except ApiError as error:
            if not stream.is_open:
                raise
            await stream.fail(error)
        except Exception:
            if not stream.is_open:
                raise
            log.exception("request %s failed in its stream", self._call.request_id)
            await stream.fail(internal(self._call.request_id))
        finally:
            stream.stop_pinging()
            self.record.client_seconds = stream.waited_seconds

    async def _stream_from(
        self, outputs: AsyncGenerator[tuple[int, RequestOutput], None], stream: EventStream
    ) -> None:
        """The status line waits for the first token, but not for long."""
        shape = self._plan.shape
        first = asyncio.ensure_future(anext(outputs))
        try:
            await asyncio.wait({first}, timeout=self._server.config.status_seconds)
            if not first.done():
                await stream.open()
                await stream.events(map(encode, shape.opening()))
            index, output = await first
        except BaseException:
            first.cancel()
            await asyncio.wait({first})
            raise
        payloads: list[bytes] = []
        if not stream.is_open:
            await stream.open()
            payloads.extend(map(encode, shape.opening()))
        self._note(index, output)
        payloads.extend(shape.payloads(index, output, self._count.usage))
        await stream.events(payloads)
        self.record.first_byte_at = self._server.clock()
        self._server.metrics.first_token.observe(self.record.first_byte_at - self.record.began)
        self._outlet = stream
        self._num_held -= 1
        async for index, output in outputs:
            self._note(index, output)
            await stream.events(shape.payloads(index, output, self._count.usage))
            self._num_held -= 1
        self.record.client_seconds = stream.waited_seconds
        closing = shape.closing(self._count.usage(), self._explanation())
        await stream.events(map(encode, closing))
        await stream.close()

    def _take(self, index: int, output: RequestOutput) -> bool:
        """Write what has come, without waking the task; False: it is the task's.

        It is where anything before it still is, or the reader must be waited for.
        """
        stream = self._outlet
        if stream is None or self._num_held or output.finished or self._call.must_wait():
            self._num_held += 1
            return False
        self._note(index, output)
        payloads = self._plan.shape.payloads(index, output, self._count.usage)
        stream.events_now(payloads, self._last_at)
        return True

    # the engine's side

    async def _outputs(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """What the engine gives, by prompt, with its failures in our words."""
        try:
            if len(self._plan.prompts) == 1:
                async with aclosing(self._one(0)) as stream:
                    async for output in stream:
                        yield 0, output
            else:
                async with aclosing(self._merged()) as merged:
                    async for item in merged:
                        yield item
        except FailedRequestError as error:
            raise self._told(error) from error
        except RequestError as error:
            raise invalid(str(error), "prompt") from error
        except EngineDeadError as error:
            raise unavailable("the engine has stopped", "engine_not_ready") from error

    def _one(self, index: int) -> Any:
        prompt = self._plan.prompts[index]
        return self._server.engine.generate(
            {"prompt": prompt.text, "prompt_token_ids": prompt.token_ids},
            self._plan.sampling,
            self._ids[index],
            options=self._plan.options,
            take=partial(self._take, index) if self._plan.is_stream else None,
        )

    async def _merged(self) -> AsyncGenerator[tuple[int, RequestOutput], None]:
        """Several prompts' streams as one, each waiting with at most one output."""
        queue: asyncio.Queue[tuple[int, RequestOutput | BaseException]] = asyncio.Queue(1)

        async def pump(index: int) -> None:
            try:
                async with aclosing(self._one(index)) as stream:
                    async for output in stream:
                        await queue.put((index, output))
            except Exception as error:
                await queue.put((index, error))

        tasks = [asyncio.ensure_future(pump(index)) for index in range(len(self._plan.prompts))]
        num_open = len(tasks)
        try:
            while num_open:
                index, output = await queue.get()
                if isinstance(output, BaseException):
                    raise output
                num_open -= output.finished
                yield index, output
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    def _told(self, error: FailedRequestError) -> ApiError:
        """What a client may hear of a request that the engine gave back."""
        said = str(error).partition(": ")[2]  # behind the engine's own name of the request
        if error.reason == "refused":
            return invalid(said, "max_tokens", "context_length_exceeded")
        if error.reason == "overloaded":
            return self._server.admission.rejected("engine_full", said)
        log.error("request %s failed in the engine: %s", self._call.request_id, said)
        return ApiError(500, "the engine failed on this request", code="engine_error")

    # the books

    def _log_prompts(self) -> None:
        """Only for an operator who has asked; escaped, since a log's reader may obey characters."""
        for engine_id, prompt in zip(self._ids, self._plan.prompts, strict=True):
            text, num_left = prompt.text[:LOGGED_CHARACTERS], len(prompt.text) - LOGGED_CHARACTERS
            more = f" and {num_left} characters more" if num_left > 0 else ""
            log.info("request %s prompt %s%s", engine_id, ascii(text), more)

    def _note(self, index: int, output: RequestOutput) -> None:
        """Count an output."""
        num_new = 0
        if not self._plan.drops_output:
            for one in output.outputs:
                num_new += len(one.token_ids)
        now = self._server.clock()
        if self._plan.is_stream and self._count.generated and num_new:
            self._server.metrics.between.observe((now - self._last_at) / num_new, num_new)
        self._last_at = now
        self._count.generated += num_new
        self._ticket.count_output(num_new)
        if output.num_cached_tokens is not None:
            self._count.cached[index] = output.num_cached_tokens
        if output.finished:
            metrics = self._server.metrics
            for one in output.outputs:
                metrics.success.add(1, one.finish_reason or "abort")
            if output.metrics is not None:
                self.record.stats = output.metrics
                metrics.observe_stats(output.metrics, now)
                if not self._plan.is_stream and output.metrics.first_token_at is not None:
                    metrics.first_token.observe(output.metrics.first_token_at - self.record.began)

    def _explanation(self) -> dict[str, Any] | None:
        if not self._plan.explains:
            return None
        self.record.outcome = "finished"
        self.record.num_output_tokens = self._count.generated
        return self.record.explain(self._server.clock())

    def _observe_parameters(self) -> None:
        metrics, sampling = self._server.metrics, self._plan.sampling
        metrics.samples.observe(sampling.n)
        metrics.most_tokens.observe(sampling.max_tokens)
        metrics.prompt_tokens.add(self._count.prompt)
        for prompt in self._plan.prompts:
            metrics.prompt_length.observe(len(prompt.token_ids))

    def _observe_end(self) -> None:
        metrics, record = self._server.metrics, self.record
        if record.entered_at is None or record.ended_at is None:
            return
        metrics.generated_tokens.add(self._count.generated)
        metrics.cached_tokens.add(sum(self._count.cached.values()))
        metrics.output_length.observe(self._count.generated)
        metrics.whole.observe(record.ended_at - record.began)
        if self._count.generated > 1 and record.first_byte_at is not None:
            span = record.ended_at - record.first_byte_at
            metrics.per_token.observe(span / (self._count.generated - 1))
