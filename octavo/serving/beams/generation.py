"""A request whose answers are found by beam search, each step of which is several requests."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from octavo.api.beam_search import BeamSearch, BeamSearchParams
from octavo.api.outputs import CompletionOutput, RequestOutput
from octavo.api.requests import CheckedRequest
from octavo.api.sinks import Sink
from octavo.observe.metrics import RequestMeter
from octavo.serving.admission import Ticket
from octavo.serving.bounds.turns import ByteTurns, Turns
from octavo.serving.exchange import Exchange
from octavo.serving.generation import Generation
from octavo.serving.operation import PreparedRequest, Writer
from octavo.transport.deadline import RequestTask

TOKEN_BYTES = 8  # of a prompt, which each request copies


class _Step:
    """The requests of one step, which ends with the last of their outputs."""

    def __init__(self, num_requests: int) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sinks = [_StepSink(self, []) for _ in range(num_requests)]
        self.errors: list[Exception] = []  # until it is raised: at most one
        self._num_left = num_requests

    def end_one(self) -> None:
        """Count one more output; the last one ends the step."""
        self._num_left -= 1
        if not (self._num_left or self.ended.done()):
            self.ended.set_result(None)

    def fail(self, error: Exception) -> None:
        """End the step with the error of one of its requests."""
        if not self.ended.done():
            self.errors.append(error)
            self.ended.set_result(None)


@dataclass(slots=True)
class _StepSink:
    """The sink of one beam's request, which has one output."""

    step: _Step
    outputs: list[RequestOutput]

    def put(self, output: RequestOutput) -> None:
        self.outputs.append(output)
        self.step.end_one()

    def fail(self, error: Exception) -> None:
        self.step.fail(error)


class BeamGeneration(Generation):
    """A generation in which each prompt has a search in place of a request of the engine.

    A search holds the places of its beams in the admission queue until it is over. Nothing of it
    outlives the request: when the request ends, its searches are cancelled.
    """

    def __init__(
        self,
        exchange: Exchange,
        ticket: Ticket,
        prepared: PreparedRequest,
        writer: Writer,
        task: RequestTask,
    ) -> None:
        super().__init__(exchange, ticket, prepared, writer, task)
        # Half of a search is no answer, so an operator ends it as the line of a batch.
        self._active.is_background = True
        self._searches: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Answer; then end the searches that are still running."""
        try:
            await super().run()
        finally:
            for each in self._searches:
                each.cancel()
            self._searches.clear()

    def _submit(self, index: int, sink: Sink) -> None:
        self._searches.append(asyncio.ensure_future(self._search(index, sink)))

    async def _search(self, index: int, sink: Sink) -> None:
        """Put the beams of one prompt, or the error that has ended their search, into a sink."""
        try:
            sink.put(await self._found(index))
        except Exception as error:
            sink.fail(error)

    async def _found(self, index: int) -> RequestOutput:
        checked, sampling = self._prepared.checked[index], self._prepared.sampling
        settings, model = self._asked.beams, self._server.llm.model
        assert settings is not None
        parameters = BeamSearchParams(
            beam_width=sampling.n,
            max_tokens=min(checked.sampling.max_tokens, settings.most_tokens),
            ignore_eos=sampling.ignore_eos,
            length_penalty=settings.length_penalty,
            early_stopping=settings.early_stopping,
        )
        began = self._server.clock()
        search = BeamSearch(checked.prompt, parameters, model, sampling.stop_token_ids)
        options = replace(checked.options, is_beam=True)
        name, num_cached, num_steps = self._ids[index], None, 0
        turns = Turns()
        while inputs := search.inputs():
            requests = [CheckedRequest(each, search.step, options) for each in inputs]
            outputs = await self._stepped(f"{name}.{num_steps}", requests)
            if not num_steps:
                num_cached = outputs[0].num_cached_tokens
            num_steps += 1
            for place, output in enumerate(outputs):
                search.take(place, output)
                await turns.take()
            search.advance()
        best, beams = search.best(), list[CompletionOutput]()
        meter = RequestMeter(self._server.metrics, len(best))
        for place, beam in enumerate(best):
            beams.append(search.written(place, beam, model, sampling, checked.reading))
            meter.add(len(beam.tokens), None)
            meter.end(len(beam.tokens), self._server.clock() - began)
            await turns.take()
        prompt = checked.prompt
        return RequestOutput(
            name, prompt.text, prompt.token_ids, beams, True, num_cached_tokens=num_cached
        )

    async def _stepped(self, name: str, requests: Sequence[CheckedRequest]) -> list[RequestOutput]:
        """Return the outputs of one step; leave nothing of it behind, whatever happens."""
        llm, step, turns = self._server.llm, _Step(len(requests)), ByteTurns()
        names = [f"{name}.{place}" for place in range(len(requests))]
        try:
            for each, request, sink in zip(names, requests, step.sinks, strict=True):
                if turns.is_due(TOKEN_BYTES * len(request.prompt.token_ids)):
                    await asyncio.sleep(0)
                llm.submit(request, sink, each)
            await step.ended
            if step.errors:
                # Not kept: the error's traceback refers to the step, and the two would keep
                # each other.
                raise step.errors.pop()
            return [output for sink in step.sinks for output in sink.outputs]
        finally:
            for each, sink in zip(names, step.sinks, strict=True):
                llm.discard(each, sink)
            step.sinks.clear()
