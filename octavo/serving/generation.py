"""One request's way through the engine: admission, stream or whole answer, statistics, the end.

Each of its prompts is given to the engine when it is its turn. Otherwise a request of many prompts
would occupy the engine until all of them are done, or wait until it has room for all of them, while
everything else waits behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from octavo.api.outputs import EngineDeadError, RequestError, RequestOutput
from octavo.api.requests import CheckedRequest
from octavo.api.sinks import Sink, joined
from octavo.observe.explain import Record
from octavo.observe.exposition import Exemplar
from octavo.observe.metrics import RequestMeter
from octavo.observe.request_timing import timing_of
from octavo.observe.traces.context import read_traceparent
from octavo.observe.traces.spans import Ended
from octavo.serving.admission import Ticket
from octavo.serving.answers.failures import answer_to
from octavo.serving.bounds.turns import Turns
from octavo.serving.exchange import Exchange
from octavo.serving.operation import PreparedRequest, TokenCounts, Writer
from octavo.serving.server import ActiveRequest
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError, ClientGoneError, internal
from octavo.transport.exchange import ResponseStream

log = logging.getLogger(__name__)

LOGGED_CHARACTERS = 16_384  # of one prompt
MAX_REASONS = 16  # why sequences ended, in a record
PART_BYTES = 1 << 20  # of a whole response that are written at once


@dataclass(slots=True)
class _PromptSink:
    """The sink of one prompt's outputs."""

    generation: Generation | None  # None: it is over, and the engine may not know that yet
    index: int

    def put(self, output: RequestOutput) -> None:
        if self.generation is not None:
            self.generation.take(self.index, output)

    def fail(self, error: Exception) -> None:
        if self.generation is not None:
            self.generation.fail(self.index, error)


class Generation:
    """One request on its way through the engine.

    The engine calls the sinks in the event loop. While the client reads fast enough, `take` writes
    a streamed output at once, and no task is woken. Else the output is held for the task, at most
    one for each prompt: later ones are merged into it until the client has read what came before.
    """

    def __init__(
        self,
        exchange: Exchange,
        ticket: Ticket,
        prepared: PreparedRequest,
        writer: Writer,
        task: RequestTask,
    ) -> None:
        server = self._server = exchange.server
        self._exchange = exchange
        self._ticket = ticket
        self._prepared = prepared
        self._asked = asked = prepared.asked
        self._writer = writer
        server.num_requests += 1
        name = f"{exchange.request_id}-{server.num_requests}"
        self._ids: list[str] = []
        num_prompt = 0
        for each in prepared.checked:
            self._ids.append(f"{name}.{len(self._ids)}")
            num_prompt += len(each.prompt.token_ids)
        self._counts = TokenCounts(num_prompt)
        self._has_prediction = any(each.prediction for each in prepared.checked)
        # Of several answers, the engine's times are those of one.
        is_one = len(prepared.checked) == 1 and prepared.sampling.n == 1
        self._is_timed = server.config.enable_per_request_metrics and is_one
        self._last_at = server.clock()
        self.record = record = Record(exchange.request_id, exchange.owner, exchange.began)
        for prompt in prepared.prompts:
            record.template_seconds += prompt.template_seconds
            record.tokenize_seconds += prompt.tokenize_seconds
        record.prepared_at = self._last_at
        record.num_prompt_tokens = num_prompt
        record.sampling, record.priority = prepared.sampling, asked.priority
        record.is_stream = asked.is_stream
        if asked.lora is not None and exchange.selected is not None:
            adapter = exchange.selected.adapter
            record.adapter = None if adapter is None else adapter.name
            record.adapter_id = asked.lora
        record.accumulation_order = server.llm.facts.accumulation_order
        self._trace = read_traceparent(exchange.headers.get("traceparent", ""))
        if server.traces is not None:
            self._trace = server.traces.begin(self._trace)
        self._active = ActiveRequest(
            record, self._ids, asked.is_stream, task.stop, exchange.is_background
        )
        self._stream = ResponseStream(exchange, writer.failure)
        self._writes_at_once = False  # the stream is open, and nothing waits to be written
        self._turns = Turns()
        self._held: dict[int, RequestOutput] = {}  # what the task must write, by prompt
        self._num_running = len(self._ids)
        self._errors: list[Exception] = []  # until the task raises it: at most one
        self._has_failed = False
        self._news = asyncio.Event()
        self._submission: Submission | None = None  # while it runs, lest the two keep each other

    async def run(self) -> None:
        """Wait to be admitted, generate, answer."""
        server, record = self._server, self.record
        # Not an attribute: a cycle of references would keep the request until a collection.
        sinks: list[_PromptSink] = []
        server.recent.add(record)
        server.active[self._ids[0]] = self._active
        if server.config.log_prompts:
            self._log_prompts()
        try:
            sampling = self._prepared.sampling
            lengths = [len(each.prompt.token_ids) for each in self._prepared.checked]
            self._submission = Submission(
                self._ticket,
                lengths,
                sampling.n,
                self._asked.priority,
                partial(self._give, sinks),
                self.fail,
            )
            await self._submission.start()
            record.entered_at = self._last_at = server.clock()
            metrics = server.metrics
            metrics.samples.observe(sampling.n)
            metrics.most_tokens.observe(sampling.max_tokens)
            metrics.prompt_tokens.add(self._counts.prompt)
            for length in lengths:
                metrics.prompt_length.observe(length)
            if self._asked.is_stream:
                await self._answer_as_stream()
            else:
                await self._answer_whole()
        except asyncio.CancelledError:
            record.outcome = "cancelled"
            raise
        except (RequestError, EngineDeadError) as error:  # before anything is written
            raise self._answer_to(max(0, len(sinks) - 1), error) from error
        finally:
            if self._submission is not None:
                self._submission.close()
                self._submission = None
            for sink in sinks:
                sink.generation = None
            server.releases.add(self._released(sinks))
            record.end(server.clock(), self._counts.generated)
            del server.active[self._ids[0]]
            self._observe_end()

    def _give(self, sinks: list[_PromptSink], index: int) -> None:
        """Give the next prompt a sink, and submit it."""
        sinks.append(_PromptSink(self, index))
        self._submit(index, sinks[index])

    def _released(self, sinks: list[_PromptSink]) -> Iterator[None]:
        """Release what each prompt holds, one after the other; not all may have begun."""
        discard, prepared = self._server.llm.discard, self._prepared
        for name, sink in zip(self._ids, sinks, strict=False):
            discard(name, sink)
            yield
        for held in (prepared.checked, prepared.prompts):
            while held:
                held.pop()
                yield
        while self._held:
            self._held.popitem()
            yield

    def _submit(self, index: int, sink: Sink) -> None:
        """Submit one prompt to the engine."""
        self._server.llm.submit(self._metered(index), sink, self._ids[index])

    def _metered(self, index: int) -> CheckedRequest:
        """Return a prompt's request, whose output is measured unless the client wants none."""
        checked = self._prepared.checked[index]
        if self._asked.drops_output:
            return checked
        meter = RequestMeter(self._server.metrics, self._prepared.sampling.n)
        return replace(checked, meter=meter)

    # the two ways of answering

    async def _answer_whole(self) -> None:
        while self._num_running > len(self._held):  # every output is the only one of its prompt
            await self._next()
        outputs = [self._held[index] for index in sorted(self._held)]
        turns = Turns()
        for index, output in enumerate(outputs):
            await turns.take()
            self._note(index, output)
        made = self._writer.whole(outputs, self._counts, self._explanation())
        body = _joined(await _with_turns(made))
        self.record.first_byte_at = self._server.clock()
        await self._exchange.respond(*body, kind=self._asked.kind)
        self.record.outcome = "finished"

    async def _answer_as_stream(self) -> None:
        stream = self._stream
        try:
            # The status line waits for the first token, but not for long.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._server.config.status_seconds):
                    await self._news.wait()
            if not self._news.is_set():
                await stream.open()
                await stream.write(self._writer.opening(self._counts))
            while self._num_running:
                await self._next()
                await self._write_held()
            self.record.client_seconds = stream.waited_seconds
            closing = self._writer.closing(self._counts, self._explanation())
            await stream.write(closing, more=False)
            self.record.outcome = "finished"
        except (asyncio.CancelledError, ClientGoneError):
            raise
        except Exception as error:
            if not stream.is_open:
                raise
            if not isinstance(error, ApiError):
                log.exception("request %s failed in its stream", self._exchange.request_id)
                error = internal(self._exchange.request_id)
            await stream.fail(error)
        finally:
            stream.stop_pinging()
            self.record.client_seconds = stream.waited_seconds

    async def _next(self) -> None:
        """Wait until something is held, or raise the error that has ended the request."""
        await self._news.wait()
        self._news.clear()
        if self._errors:
            # Not kept: the error's traceback refers to self, and the two would keep each other.
            raise self._errors.pop()

    async def _write_held(self) -> None:
        """Write what is held, behind the status line; later outputs may then be written at once."""
        stream, writer = self._stream, self._writer
        frames: list[bytes] = []
        if not stream.is_open:
            await stream.open()
            frames.extend(writer.opening(self._counts))
        held, self._held = self._held, {}
        for index, output in held.items():
            await self._turns.take()  # of all passes: one may begin in the turn of the one before
            self._num_running -= output.finished
            self._note(index, output)
            frames.extend(await _with_turns(writer.frames(index, output, self._counts)))
        await stream.write(frames)
        if self.record.first_byte_at is None:
            if not any(output.outputs for output in held.values()):  # it was about prompts
                return
            self.record.first_byte_at = now = self._server.clock()
            first_token = self._server.metrics.first_token
            first_token.observe(now - self.record.began, exemplar=self._exemplar())
        self._writes_at_once = not self._held

    # the engine's side

    def take(self, index: int, output: RequestOutput) -> None:
        """Write an output at once if that needs no waiting; else hold it for the task."""
        if self._writes_at_once and not output.finished and not self._exchange.must_wait():
            self._note(index, output)
            frames = self._writer.frames(index, output, self._counts)
            self._stream.write_now(filter(None, frames), self._last_at)  # without turns
            return
        self._writes_at_once = False
        if output.finished and self._submission is not None:
            self._submission.end(index)
        before = self._held.get(index)
        self._held[index] = output if before is None else joined(before, output)
        self._news.set()

    def fail(self, index: int, error: Exception) -> None:
        """End the request with an error of the engine, which concerns one prompt."""
        if not self._has_failed:
            self._has_failed = True
            self._errors.append(self._answer_to(index, error))
            self._errors[0].__cause__ = error
            self._news.set()

    def _answer_to(self, index: int, error: Exception) -> Exception:
        """Return the client's answer to an error of the engine, by the prompt's index."""
        admission = self._server.admission
        return answer_to(error, self._prepared, index, admission, self._exchange.request_id)

    # logs and statistics

    def _log_prompts(self) -> None:
        """Log the prompts, escaped: a terminal or a log's reader may obey control characters."""
        for name, each in zip(self._ids, self._prepared.checked, strict=True):
            text = each.prompt.text
            if text is None:
                text = self._server.llm.model.tokenizer.decode(
                    each.prompt.token_ids, skip_special_tokens=False
                )
            num_left = len(text) - LOGGED_CHARACTERS
            more = f" and {num_left} characters more" if num_left > 0 else ""
            log.info("request %s prompt %s%s", name, ascii(text[:LOGGED_CHARACTERS]), more)

    def _note(self, index: int, output: RequestOutput) -> None:
        """Count the tokens of an output and observe its latency."""
        num_new = 0
        if not self._asked.drops_output:
            for one in output.outputs:
                num_new += len(one.token_ids)
                self._counts.reasoning += one.num_reasoning_tokens
                if self._has_prediction:
                    self._counts.predicted[index, one.index] = (
                        one.num_accepted_prediction_tokens,
                        one.num_rejected_prediction_tokens,
                    )
        now = self._server.clock()
        self._last_at = now
        self._counts.generated += num_new
        self._ticket.count_output(num_new)
        if output.num_cached_tokens is not None:
            self._counts.cached_by_prompt[index] = output.num_cached_tokens
        if output.finished:
            self._note_end(output, now)

    def _note_end(self, output: RequestOutput, now: float) -> None:
        metrics = self._server.metrics
        reasons = self.record.finish_reasons
        for one in output.outputs:
            reason = one.finish_reason or "abort"
            metrics.success.add(1, reason)
            if len(reasons) < MAX_REASONS:
                reasons.append(reason)
        if output.metrics is not None:
            self.record.stats = output.metrics
            if self._is_timed:
                self._counts.timing = timing_of(self.record, self._counts.generated)
            exemplar = self._exemplar()
            metrics.observe_stats(output.metrics, now, exemplar)
            first = output.metrics.first_token_at
            if not self._asked.is_stream and first is not None:
                metrics.first_token.observe(first - self.record.began, exemplar=exemplar)

    def _explanation(self) -> dict[str, Any] | None:
        if not self._asked.explains:
            return None
        self.record.num_output_tokens = self._counts.generated
        # The record itself says so only when the client has the whole answer.
        return {**self.record.explain(self._server.clock()), "outcome": "finished"}

    def _observe_end(self) -> None:
        metrics, record = self._server.metrics, self.record
        traces, exchange = self._server.traces, self._exchange
        if traces is not None and self._trace is not None:
            place = exchange.method, exchange.route, exchange.status
            traces.add(Ended(record, self._trace, exchange.model_name, *place))
        if record.entered_at is None or record.ended_at is None:
            return
        metrics.cached_tokens.add(self._counts.cached)
        metrics.whole.observe(record.ended_at - record.began, exemplar=self._exemplar())

    def _exemplar(self) -> Exemplar | None:
        """Return what a histogram may name this request by; None if there is nothing of our own."""
        labels: list[tuple[str, str]] = []
        if self._trace is not None and self._trace.is_sampled:
            labels.append(("trace_id", self._trace.trace_id))
        if not self._exchange.is_named:  # a client's own name may say anything
            labels.append(("request_id", self._exchange.request_id))
        return Exemplar(tuple(labels), self._server.wall_time()) if labels else None


def _joined(parts: Sequence[bytes]) -> list[bytes]:
    """Return the parts of a body as few larger ones, which are written one after the other."""
    joined, first, size = list[bytes](), 0, 0
    for place, part in enumerate(parts, 1):
        size += len(part)
        if size > PART_BYTES or place == len(parts):
            joined.append(b"".join(parts[first:place]))
            first, size = place, 0
    return joined


async def _with_turns(parts: Iterable[bytes]) -> list[bytes]:
    """Return what a writer makes; let other requests run at each `TURN`."""
    made: list[bytes] = []
    for part in parts:
        if part:
            made.append(part)
        else:
            await asyncio.sleep(0)
    return made


class Submission:
    """The prompts of one request, and their tickets in the admission queue."""

    def __init__(
        self,
        ticket: Ticket,
        num_tokens: Sequence[int],
        num_samples: int,
        priority: int,
        submit: Callable[[int], None],
        fail: Callable[[int, Exception], None],
    ) -> None:
        self._first = ticket
        self._num_tokens = num_tokens  # of each prompt
        self._num_samples = num_samples  # sequences of each prompt
        self._priority = priority
        self._submit = submit  # a prompt, by its index
        self._fail = fail
        self._tickets: dict[int, Ticket] = {}  # of the prompts in the engine
        self._num_behind = 0  # tokens of the prompts that have no ticket yet
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Wait for the first prompt's turn and submit it; let the others follow."""
        first, *others = self._num_tokens
        num_behind = sum(others)
        await self._first.wait(first, self._num_samples, self._priority, num_behind)
        self._num_behind = num_behind
        self._tickets[0] = self._first
        self._submit(0)
        if others:
            self._task = asyncio.get_running_loop().create_task(self._follow())

    def end(self, index: int) -> None:
        """Give a prompt's place to the next in the queue."""
        self._tickets.pop(index).leave()

    def close(self) -> None:
        """Release all places; prompts that still wait for one do not get any."""
        if self._task is not None:
            self._task.cancel()
        for ticket in self._tickets.values():
            ticket.leave()
        self._tickets.clear()
        self._first.hold_back(-self._num_behind)
        self._num_behind = 0

    async def _follow(self) -> None:
        turns = Turns()
        for index in range(1, len(self._num_tokens)):
            await turns.take()
            num_tokens = self._num_tokens[index]
            self._num_behind -= num_tokens
            try:
                self._tickets[index] = await self._first.wait_for_another(
                    num_tokens, self._num_samples, self._priority
                )
                self._submit(index)
            except Exception as error:
                self._fail(index, error)
                return
