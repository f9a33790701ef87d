"""One attempt to finish a durable request whose client has not come back yet."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from msgspec.structs import replace

from octavo.api.outputs import RequestOutput
from octavo.client.durable.requests import DurableRequest
from octavo.observe.request_meter import RequestMeter
from octavo.serving.admission import Ticket
from octavo.serving.durable.head import read_head, restore
from octavo.serving.durable.resubmission import resubmit
from octavo.serving.operation import PreparedRequest
from octavo.serving.submission import Submission

if TYPE_CHECKING:
    from octavo.serving.durable.service import Durability
    from octavo.serving.server import Server


@dataclass(slots=True)
class _PromptSink:
    """The sink of one prompt's outputs, of which only the end matters."""

    generation: UnattendedGeneration | None  # None: it is over
    index: int

    def put(self, output: RequestOutput) -> None:
        if output.finished and self.generation is not None:
            self.generation.end(self.index)

    def fail(self, error: Exception) -> None:
        if self.generation is not None:
            self.generation.fail(self.index, error)


class UnattendedGeneration:
    """A generation whose outputs are recorded and go nowhere else."""

    def __init__(self, server: Server, service: Durability, request: DurableRequest) -> None:
        self._server = server
        self._service = service
        self._request = request
        self._name = request.request_id
        self._prepared: PreparedRequest | None = None
        self._submission: Submission | None = None
        self._sinks: dict[str, _PromptSink] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._num_running = 0
        self._errors: list[Exception] = []
        self._over = asyncio.Event()

    async def run(self, ticket: Ticket) -> None:
        """Wait to be admitted and generate; raise the error that has ended the request."""
        request, server = self._request, self._server
        head = read_head(request.head)
        self._prepared = prepared = await restore(server, head, request.owner, is_background=True)
        self._num_running = len(prepared.checked)
        self._submission = Submission(
            ticket,
            [len(each.prompt.token_ids) for each in prepared.checked],
            prepared.sampling.n,
            prepared.asked.priority,
            self._submit,
            self.fail,
        )
        server.num_requests += 1
        self._name = f"{request.request_id}-{server.num_requests}"
        try:
            async with asyncio.timeout(server.config.max_request_seconds):
                await self._submission.start()
                await self._over.wait()
        finally:
            self._submission.close()
            for task in self._tasks:
                task.cancel()
            for sink in self._sinks.values():
                sink.generation = None
            server.releases.add(self._released())
        if self._errors:
            raise self._errors.pop()

    def _released(self) -> Iterator[None]:
        """Release what each prompt holds, one after the other."""
        for name, sink in self._sinks.items():
            self._service.client.leave(name)
            self._server.llm.discard(name, sink)
            yield

    def end(self, index: int) -> None:
        """Note that a prompt's answers have ended."""
        assert self._submission is not None
        self._submission.end(index)
        self._num_running -= 1
        if not self._num_running:
            self._over.set()

    def fail(self, index: int, error: Exception) -> None:
        """End the request with an error, which concerns one prompt."""
        self._errors = [error]
        self._over.set()

    def _submit(self, index: int) -> None:
        prepared, request = self._prepared, self._request
        assert prepared is not None
        num_answers = prepared.sampling.n
        answers = request.answers[index * num_answers : (index + 1) * num_answers]
        name = f"{self._name}.{index}"
        sink = self._sinks[name] = _PromptSink(self, index)
        self._service.client.follow(name, request, answers)
        meter = RequestMeter(self._server.metrics, num_answers)
        checked = replace(prepared.checked[index], meter=meter)
        work = resubmit(self._server.llm, checked, sink, name, answers)
        self._tasks.append(asyncio.get_running_loop().create_task(self._watched(index, work)))

    async def _watched(self, index: int, work: Coroutine[None, None, None]) -> None:
        try:
            await work
        except Exception as error:
            self.fail(index, error)
