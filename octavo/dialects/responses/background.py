"""Responses in the background: a task answers each, whether a client is there or not.

Clients may follow one: they get its events, as they come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import msgspec

from octavo.client.durable.requests import DurableRequest
from octavo.dialects.common.dialect import event
from octavo.dialects.responses.dialect import ID_PREFIX, RESPONSES, error_fields
from octavo.dialects.responses.schema import ResponsesRequest
from octavo.dialects.responses.writer import FAILED, ResponseWriter
from octavo.serving.durable.service import Durability
from octavo.serving.exchange import Exchange
from octavo.serving.generate import admitted, answer
from octavo.serving.operation import GenerationRequest, PreparedRequest
from octavo.serving.server import Server
from octavo.serving.store.responses import Answerer, Entry
from octavo.serving.store.run import Run
from octavo.transport.answer import KeptAnswer, RequestHead
from octavo.transport.deadline import RequestTask
from octavo.transport.errors import ApiError, internal, unavailable
from octavo.transport.exchange import ResponseStream, encode

MOST_AT_ONCE = 64  # events that are written without a turn for others
log = logging.getLogger(__name__)

CANCELLED = "response_cancelled"
PATIENCE_SECONDS = 3600.0  # for which a response of the last server waits for room
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 5.0  # seconds between attempts to find it
_NOT_READY = ("engine_not_ready", "sleeping")  # codes of errors that pass
_SILENT = replace(RESPONSES, ping=b"")  # no connection needs to be kept alive

Work = Callable[[Exchange, RequestTask], Awaitable[None]]


class Background:
    """The task that answers one response, over an exchange that no connection ends."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._entry: Entry | None = None
        self.begun: asyncio.Future[Entry] = asyncio.get_running_loop().create_future()
        self.run = run = Run()
        head = RequestHead("POST", "/v1/responses", {})
        self.exchange = Exchange(server, head, _Events(run), _SILENT)
        self.exchange.has_client = False
        self._task = RequestTask(self.exchange)
        run.stop = self._task.stop

    def start(self, work: Work) -> None:
        """Begin to work in a task of its own."""
        self.run.task = asyncio.get_running_loop().create_task(self._work(work))

    def note(self, writer: ResponseWriter) -> None:
        """Note what writes the answer; its response can be followed, if it is kept."""
        if writer.entry is None:
            raise unavailable(
                "there is no room to keep a response in the background; try again later, or "
                "raise --responses-bytes",
                "responses_full",
            )
        self.begin(writer.entry)

    def begin(self, entry: Entry) -> None:
        """Let clients find the run of a response."""
        self._entry = entry
        store = self._server.responses
        store.runs[entry] = self.run
        self.run.on_growth = partial(store.hold_events, entry)
        if not self.begun.done():
            self.begun.set_result(entry)

    async def _work(self, work: Work) -> None:
        try:
            await work(self.exchange, self._task)
        except Exception as error:
            if not isinstance(error, ApiError):
                log.exception("request %s failed in the background", self.exchange.request_id)
                error = internal(self.exchange.request_id)
            self._fail(error)
        finally:
            await self._leave()

    def _fail(self, error: ApiError) -> None:
        """End the response with an error; before it has begun, its client gets it."""
        if self._entry is None:
            self.begun.set_exception(error)
        elif error.code == "stream_taken_over":  # another attempt answers it
            self._entry = None
        elif self._answerer is not None:
            is_cancelled = error.code == CANCELLED
            self.run.add(self._answerer.cancel() if is_cancelled else self._answerer.failure(error))

    @property
    def _answerer(self) -> Answerer | None:
        """The writer of the response; there is one at a time."""
        return None if self._entry is None else self._entry.answerer

    async def _leave(self) -> None:
        """Let the followers leave, and keep the events of a response that has ended."""
        self.run.end()
        store = self._server.responses
        try:
            if self._entry is not None and not self._server.is_continued_later:
                await self._finish(self._entry)
        finally:
            for entry in [each for each, run in store.runs.items() if run is self.run]:
                del store.runs[entry]

    async def _finish(self, entry: Entry) -> None:
        store = self._server.responses
        if entry.answerer is not None:
            store.abandon(entry, entry.answerer)
        elif not entry.is_final:
            await lose(self._server, entry)
        if self.run.is_kept:
            store.keep_events(entry, await asyncio.to_thread(self.run.packed))


async def start(
    exchange: Exchange,
    num_bytes: int,
    request: ResponsesRequest,
    asked: GenerationRequest,
) -> Entry:
    """Begin a response in the background; return it once it is kept, or raise its error."""
    background = Background(exchange.server)
    for name in ("owner", "request_id", "began", "created", "body_digest", "selected"):
        setattr(background.exchange, name, getattr(exchange, name))
    inner = asked.writer

    def make(made: Exchange, prepared: PreparedRequest) -> ResponseWriter:
        writer = inner(made, prepared)
        assert isinstance(writer, ResponseWriter)
        background.note(writer)
        return writer

    async def work(made: Exchange, task: RequestTask) -> None:
        async with admitted(made, num_bytes) as ticket:
            await answer(made, ticket, request, asked, task)

    asked.writer = make
    background.start(work)
    return await asyncio.shield(background.begun)


async def recover(server: Server) -> None:
    """Continue what the last server has not finished, as far as the journal has it."""
    durability = server.durability
    for entry in server.responses.unfinished():
        request = None
        if durability is not None:
            name = entry.id.removeprefix(ID_PREFIX)
            request = durability.requests.find(entry.owner, name)
        if durability is None or request is None:
            await lose(server, entry)
        else:
            _resume(server, durability, request, entry)


async def lose(server: Server, entry: Entry) -> None:
    """Let a response fail that nothing continues."""
    content = await server.responses.read(entry)
    if content is None:
        server.responses.forget(entry)
        return
    response = msgspec.json.decode(content.body)
    why = "the server ended before the response did; send the request again"
    response.update(status=FAILED, error={"code": "server_error", "message": why})
    server.responses.settle(entry, FAILED, encode(response))


def _resume(server: Server, durability: Durability, request: DurableRequest, entry: Entry) -> None:
    background = Background(server)
    background.exchange.owner = entry.owner
    background.exchange.request_id = request.request_id
    background.begin(entry)

    async def work(made: Exchange, task: RequestTask) -> None:
        seconds = PATIENCE_SECONDS + server.config.max_request_seconds
        await task.run(_when_there_is_room(made, task), seconds)

    async def _when_there_is_room(made: Exchange, task: RequestTask) -> None:
        delay = _FIRST_DELAY
        while True:
            try:
                async with admitted(made, len(request.head)) as ticket:
                    await durability.resume(made, ticket, request, task)
                return
            except ApiError as error:
                is_busy = error.status == 429 or error.code in _NOT_READY
                if not is_busy or made.status is not None:  # a part of it is written
                    raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, _LONGEST_DELAY)

    background.start(work)


class _Events(KeptAnswer):
    """An answer whose events are kept in a run."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def write_now(self, part: bytes) -> None:
        self._run.add(part)


async def follow(exchange: Exchange, run: Run, known: int) -> None:
    """Write the events behind the one that the client knows, until the last."""
    stream = ResponseStream(exchange, _failure)
    at = known + 1
    _check(run)
    await stream.open()
    try:
        while True:
            _check(run)
            news = run.news()
            frames = run.read(at)
            if frames:
                news.close()
                at += len(frames)
                for begin in range(0, len(frames), MOST_AT_ONCE):
                    await stream.write(frames[begin : begin + MOST_AT_ONCE])
                    await asyncio.sleep(0)
            elif run.is_over:
                news.close()
                break
            else:
                await news
        await stream.write((), more=False)
    finally:
        stream.stop_pinging()


def _check(run: Run) -> None:
    """Raise ApiError if the events of a response were dropped."""
    if not run.is_kept:
        raise unavailable(
            "there was no room to keep the events of this response, which goes on without them; "
            "get it without `stream` when it has ended",
            "responses_full",
        )


def _failure(error: ApiError) -> bytes:
    """Return the event of an error of this connection alone."""
    return event("error", error_fields(error))
