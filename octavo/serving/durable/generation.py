"""One attempt to answer a durable request, from where the last attempt has left it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import TYPE_CHECKING

from msgspec import Struct

from octavo.api.sinks import Sink
from octavo.client.durable.requests import DurableRequest
from octavo.serving.admission import Ticket
from octavo.serving.durable.head import describe
from octavo.serving.durable.numbered import NumberedWriter
from octavo.serving.durable.positions import Position
from octavo.serving.durable.resubmission import resubmit
from octavo.serving.exchange import Exchange
from octavo.serving.generation import Generation
from octavo.serving.operation import PreparedRequest, Writer
from octavo.transport.deadline import RequestTask

if TYPE_CHECKING:
    from octavo.serving.durable.service import Durability

MAX_ANSWERS = 128  # of a request that is recorded: each event has a position for each of them
WRITTEN_SECONDS = 1.0  # longest wait for the disk before a stream begins


class DurableGeneration(Generation):
    """A generation whose events are recorded, and whose stream has positions.

    `request` is what is known of an earlier attempt, `struct` the body of a new request.
    """

    def __init__(
        self,
        exchange: Exchange,
        ticket: Ticket,
        prepared: PreparedRequest,
        writer: Writer,
        task: RequestTask,
        *,
        service: Durability,
        known: list[Position],
        struct: Struct | None = None,
        request: DurableRequest | None = None,
    ) -> None:
        self._numbered = NumberedWriter(
            writer,
            prepared.sampling.n,
            known,
            exchange.dialect.with_id,
            reports_prompt=prepared.asked.reports_prompt,
        )
        super().__init__(exchange, ticket, prepared, self._numbered, task)
        self._service = service
        self._struct = struct
        self._request = request
        self._is_new = request is None
        self._known = known
        self._replays: list[asyncio.Future[None]] = []
        if request is not None:
            self._numbered.gives_ids = not self._asked.numbers_events
            self._is_timed = False  # the times of the earlier attempt are not known

    async def run(self) -> None:
        """Answer; then note whether the request needs the engine any longer."""
        try:
            await super().run()
        finally:
            for replay in self._replays:
                replay.cancel()
            self._replays.clear()  # their frames refer to this object
            for name in self._ids:
                self._service.client.leave(name)
            if self._request is not None:
                self._service.leave(self._request, self.record.outcome == "finished")

    def _submit(self, index: int, sink: Sink) -> None:
        if self._is_new and index == 0:
            self._begin()
        request, name = self._request, self._ids[index]
        if request is None:
            super()._submit(index, sink)
            return
        num_answers = self._prepared.sampling.n
        answers = request.answers[index * num_answers : (index + 1) * num_answers]
        self._service.client.follow(name, request, answers)
        if self._is_new:
            self._server.llm.submit(self._metered(index), sink, name)
        else:
            work = resubmit(self._server.llm, self._metered(index), sink, name, answers)
            self._replays.append(asyncio.ensure_future(self._watched(index, work)))

    async def _watched(self, index: int, work: Coroutine[None, None, None]) -> None:
        """Repeat one prompt's answers, beside the task that writes them."""
        try:
            await work
        except Exception as error:
            self.fail(index, error)

    def _begin(self) -> None:
        """Record the request; without room for it, it is answered like any other."""
        prepared, exchange = self._prepared, self._exchange
        owner, request_id = exchange.owner, exchange.request_id
        assert self._struct is not None
        if len(self._known) > MAX_ANSWERS:
            self._service.end_beginning(owner, request_id)
            return
        seeded = self._server.llm.seeded
        prepared.checked = [seeded(each, place) for place, each in enumerate(prepared.checked)]
        head = describe(self._struct, prepared, exchange)
        begin = self._service.requests.begin
        self._request = begin(owner, request_id, head, len(self._known))
        self._service.end_beginning(owner, request_id)
        if self._request is not None:
            self._numbered.gives_ids = not self._asked.numbers_events
            self._service.enter(self._request, self._active.stop)

    async def _answer_as_stream(self) -> None:
        """Answer when the journal has the request, so that no client knows of an unknown one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WRITTEN_SECONDS):
                await self._service.requests.writer.written()
        await super()._answer_as_stream()
