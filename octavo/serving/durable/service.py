"""The durable requests of one server: who answers each now, and who continues it next.

At most one attempt answers a request. A client that asks for it again ends the attempt of its
earlier connection and continues with what has been recorded, as after a death of the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from octavo.api.outputs import EngineDeadError, RequestError
from octavo.client.client import EngineClient
from octavo.client.durable.file import JournalFile, JournalFileError
from octavo.client.durable.recording_client import RecordingClient
from octavo.client.durable.requests import DurableRequest, DurableRequests, Limits
from octavo.client.durable.writer import JournalWriter
from octavo.options.transport import ServerStartError
from octavo.serving.bounds.periodic import periodically
from octavo.serving.durable.generation import DurableGeneration
from octavo.serving.durable.head import Head, form_of, read_head, restore, select_again
from octavo.serving.durable.positions import FROM, START, Position, known_to
from octavo.serving.durable.unattended import SilentWriter, without_client
from octavo.serving.preparation import prepare
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError, invalid

if TYPE_CHECKING:
    from octavo.serving.admission import Ticket
    from octavo.serving.exchange import Exchange
    from octavo.serving.operation import GenerationRequest
    from octavo.serving.server import Server

log = logging.getLogger(__name__)

TIDY_SECONDS = 1.0


@dataclass(slots=True)
class _Attempt:
    """One attempt to answer a request, until it is over."""

    stop: Callable[[Exception], None]
    over: asyncio.Event = field(default_factory=asyncio.Event)
    num_waiting: int = 0  # other attempts that wait for its end


@dataclass(slots=True)
class _Beginning:
    """A new request until it is recorded, or ends without that."""

    digest: bytes  # of its body
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Durability:
    """The durable requests of one server, and the attempts to answer them."""

    def __init__(self, server: Server, requests: DurableRequests, client: RecordingClient) -> None:
        self._server = server
        self.requests = requests
        self.client = client
        self._attempts: dict[int, _Attempt] = {}  # by the number of the request
        self._beginnings: dict[tuple[str, str], _Beginning] = {}  # by owner and id
        self._tasks: set[asyncio.Task[None]] = set()
        self._add_metrics()

    @classmethod
    def open(cls, server: Server) -> Durability:
        """Read the journal, and record what passes; before the engine is attached to a loop."""
        config, facts = server.config, server.llm.facts
        assert config.journal is not None
        file = open_journal(config.journal)
        identity = f"{facts.directory} {facts.architecture} {facts.dtype} {facts.vocabulary}"
        if config.tokens_only:  # answers that another server has begun have a text
            identity += " of tokens"
        limits = Limits(config.journal_seconds, config.journal_bytes)
        requests = DurableRequests(JournalWriter(file), identity, limits)
        num_damaged = requests.load(file.records) + file.records.num_damaged
        if num_damaged:
            log.warning(
                "the journal %s cannot be read in %d places, as after a kill in mid-write; all "
                "other records are used",
                config.journal,
                num_damaged,
            )
        clients: list[RecordingClient] = []

        def wrap(inner: EngineClient) -> EngineClient:
            clients.append(RecordingClient(inner, requests))
            return clients[0]

        server.llm.wrap_client(wrap)
        return cls(server, requests, clients[0])

    def start(self) -> None:
        """Start to write, and continue what the last server has left for keys that are valid."""
        for request in self.requests:
            if not self._server.access.knows(request.owner):
                log.warning("request %s is forgotten: its key is not valid", request.request_id)
                self.requests.forget(request)
        self.requests.writer.start(self.requests.snapshot())
        unfinished = [request for request in self.requests if request.rested_at is None]
        if unfinished:
            log.warning("requests of the last server that continue: %d", len(unfinished))
        self._spawn(self._continue_all(unfinished))
        self._spawn(periodically(TIDY_SECONDS, self._tidy, "forgetting requests of the journal"))

    async def close(self) -> None:
        """End all tasks, and write what is left."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.to_thread(self.requests.writer.close)

    # answers to clients

    async def generate(
        self,
        exchange: Exchange,
        ticket: Ticket,
        asked: GenerationRequest,
        struct: Struct,
        task: RequestTask,
    ) -> None:
        """Answer a new request, or one that was sent before under this id with this key."""
        if await self.repeat(exchange, ticket, task):
            return
        name = exchange.owner, exchange.request_id
        self._beginnings[name] = _Beginning(exchange.body_digest)
        asked.keeps_apart = asked.is_stream
        try:
            prepared = await prepare(
                self._server, asked, exchange.owner, is_background=exchange.yields
            )
            writer = asked.writer(exchange, prepared)
            known = [START] * (len(prepared.checked) * prepared.sampling.n)
            generation = DurableGeneration(
                *(exchange, ticket, prepared, writer, task),
                service=self,
                known=known,
                struct=struct,
            )
            await generation.run()
        finally:
            self.end_beginning(*name)

    async def repeat(self, exchange: Exchange, ticket: Ticket, task: RequestTask) -> bool:
        """Answer a request that was sent before under this id with this key, if it was."""
        name = exchange.owner, exchange.request_id
        while (other := self._beginnings.get(name)) is not None:
            _check_same(exchange, other.digest)
            await other.over.wait()
        request = self.requests.find(*name)
        if request is None:
            return False
        _check_same(exchange, read_head(request.head).digest)
        await self.resume(exchange, ticket, request, task)
        return True

    async def resume(
        self, exchange: Exchange, ticket: Ticket, request: DurableRequest, task: RequestTask
    ) -> None:
        """Answer a request that was begun before, from the position that the client names."""
        head = read_head(request.head)
        if form_of(head) != exchange.dialect.form:
            raise invalid(
                f"the answer to this request has the form of {form_of(head)}; continue it over the "
                "interface that began it"
            )
        async with self._server.adapters.held_again(head.lora):
            await self._resume(exchange, ticket, request, task, head)

    async def _resume(
        self,
        exchange: Exchange,
        ticket: Ticket,
        request: DurableRequest,
        task: RequestTask,
        head: Head,
    ) -> None:
        known = known_to(exchange, len(request.answers))
        select_again(exchange, head)
        prepared = await restore(self._server, head, request.owner, is_background=exchange.yields)
        if prepared.asked.numbers_events:  # the writer finds the position by itself
            known = [START] * len(known)
        if any(each > START for each in known) and not prepared.asked.is_stream:
            raise invalid("this request was not streamed; its answer comes as a whole", FROM)
        _check_end(request, known, prepared.sampling.max_tokens)
        await self._take_over(request)
        exchange.request_id, exchange.created = request.request_id, head.created
        writer = prepared.asked.writer(exchange, prepared)
        generation = DurableGeneration(
            *(exchange, ticket, prepared, writer, task),
            service=self,
            known=known,
            request=request,
        )
        self.enter(request, task.stop)
        await generation.run()

    # called by attempts

    def end_beginning(self, owner: str, request_id: str) -> None:
        """Let others of this id continue: the request is recorded now, or will never be."""
        beginning = self._beginnings.pop((owner, request_id), None)
        if beginning is not None:
            beginning.over.set()

    def enter(self, request: DurableRequest, stop: Callable[[Exception], None]) -> _Attempt:
        """Note that an attempt answers a request; `stop` ends it."""
        assert request.number not in self._attempts, "one attempt at a time"
        attempt = self._attempts[request.number] = _Attempt(stop)
        self.requests.wake(request)
        return attempt

    def leave(self, request: DurableRequest, has_ended: bool) -> None:
        """Note the end of an attempt, which may have ended the request.

        Otherwise the request rests if its client has left, and continues after the server's end.
        """
        attempt = self._attempts.pop(request.number)
        attempt.over.set()
        if not attempt.num_waiting:
            self._settle(request, has_ended)

    def _settle(self, request: DurableRequest, has_ended: bool) -> None:
        """Decide what becomes of a request that no attempt answers now."""
        if any(answer.finish_reason in _UNTRIED for answer in request.answers):
            self.requests.forget(request)
        elif has_ended or not self._server.is_draining:
            self.requests.rest(request)

    async def _take_over(self, request: DurableRequest) -> None:
        """End the attempt that answers a request now."""
        while (attempt := self._attempts.get(request.number)) is not None:
            attempt.num_waiting += 1
            attempt.stop(_taken())
            try:
                await attempt.over.wait()
            except asyncio.CancelledError:  # the newer client has left meanwhile
                attempt.num_waiting -= 1
                if attempt.over.is_set() and not attempt.num_waiting:
                    self._settle(request, False)
                raise
        if not request.is_known:
            raise _gone()

    # requests without a client

    async def _continue_all(self, requests: list[DurableRequest]) -> None:
        """Begin to finish these one by one, with breaks for clients between them."""
        for request in requests:
            self._spawn(self._continue(request))
            await asyncio.sleep(0)

    async def _continue(self, request: DurableRequest) -> None:
        """Finish a request of the last server, for the client that will come back."""
        if request.number in self._attempts or request.rested_at is not None:
            return  # its client was faster
        exchange = without_client(self._server, request.owner)
        exchange.request_id, task = request.request_id, RequestTask(exchange)
        attempt = self.enter(request, task.stop)
        try:
            ticket = self._server.admission.register(
                request.owner, len(request.head), is_background=True
            )
            try:
                work = self._finish(exchange, ticket, request, task)
                await task.run(work, self._server.config.max_request_seconds)
            finally:
                ticket.leave()
        except (ApiError, RequestError, EngineDeadError) as error:
            if not (attempt.num_waiting or self._server.is_draining):  # nothing continues it soon
                log.warning("request %s could not be continued: %s", request.request_id, error)
        except Exception:
            log.exception("request %s could not be continued", request.request_id)
        finally:
            if self._attempts.get(request.number) is attempt:  # nothing was generated
                self.leave(request, False)

    async def _finish(
        self, exchange: Exchange, ticket: Ticket, request: DurableRequest, task: RequestTask
    ) -> None:
        """Generate the rest of a request, and record it."""
        head = read_head(request.head)
        async with self._server.adapters.held_again(head.lora):
            select_again(exchange, head)
            prepared = await restore(self._server, head, request.owner, is_background=True)
            prepared.asked.numbers_events = True  # there are none that would need ids
            generation = DurableGeneration(
                *(exchange, ticket, prepared, SilentWriter(), task),
                service=self,
                known=[START] * len(request.answers),
                request=request,
            )
            await generation.run()

    async def _tidy(self) -> None:
        self.requests.tidy()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add_metrics(self) -> None:
        requests, writer = self.requests, self.requests.writer
        metrics = self._server.metrics
        add = metrics.add_gauge
        add("journal_requests", "Requests in the journal.", lambda: len(requests))
        add("journal_bytes", "Bytes of the journal's file.", lambda: writer.num_bytes)
        add(
            "journal_is_whole",
            "Whether the journal's file can be written.",
            lambda: float(writer.is_whole),
        )
        metrics.add_counter("journal_failures", "Failed writes.", lambda: writer.num_failures)
        metrics.add_counter(
            "journal_dropped",
            "Requests that were too large for the journal.",
            lambda: requests.num_dropped,
        )


def open_journal(path: Path) -> JournalFile:
    """Open a journal; raise ServerStartError for a file that cannot be one."""
    try:
        return JournalFile(path)
    except JournalFileError as error:
        raise ServerStartError(str(error)) from error
    except OSError as error:
        raise ServerStartError(
            f"the journal {path} cannot be read: {error.strerror or error}; name another file"
        ) from error


# Ends of requests that the engine has not tried; sent again they may be accepted.
_UNTRIED = ("refused", "overloaded")


def _check_end(request: DurableRequest, known: list[Position], max_tokens: int) -> None:
    """Raise ApiError for a position behind the end."""
    for answer, position in zip(request.answers, known, strict=True):
        most = max_tokens if answer.finish_reason is None else len(answer.tokens)
        if position.tokens > most + 1:
            raise invalid(
                f"{FROM}={position} is behind the end of the stream, which has at most "
                f"{most} tokens and its end",
                FROM,
            )


def _check_same(exchange: Exchange, digest: bytes) -> None:
    """Raise ApiError for another body than that of the request which has this id."""
    if digest != exchange.body_digest:
        raise ApiError(
            409,
            f"X-Request-Id {exchange.request_id!r} belongs to another request that was sent with "
            "this key; send each request with an id of its own, or leave it out",
            code="request_id_in_use",
        )


def _taken() -> ApiError:
    return ApiError(
        409, "this stream continues on a newer connection of its client", code="stream_taken_over"
    )


def _gone() -> ApiError:
    return ApiError(404, "this stream is no longer kept", code="stream_not_found")
