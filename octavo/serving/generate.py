"""The handler of every route that generates: admit, read, translate, prepare, generate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from octavo.core.config import MAX_PRIORITY
from octavo.serving.admission import Ticket
from octavo.serving.beams.generation import BeamGeneration
from octavo.serving.durable.head import register
from octavo.serving.exchange import Exchange
from octavo.serving.generation import Generation
from octavo.serving.large_bodies import read
from octavo.serving.operation import GenerationRequest
from octavo.serving.preparation import prepare
from octavo.serving.translation import TranslationContext
from octavo.transport.answer import Headers
from octavo.transport.deadline import RequestTask
from octavo.transport.exchange import encode
from octavo.transport.route import Handler

T = TypeVar("T", bound=msgspec.Struct)
# A load balancer asks with the first header for the server's load in the second (ORCA).
_LOAD_ASKED, _LOAD = "endpoint-load-metrics-format", b"endpoint-load-metrics"
MAX_BACKGROUND_SECONDS = 14 * 86_400.0  # longer than any batch


def generating(
    kind: type[T], translate: Callable[[TranslationContext, T], GenerationRequest]
) -> Handler:
    """Return the handler of a route whose request is a `kind`."""
    register(kind, translate)
    return partial(_handle, kind, translate)


async def _handle(
    kind: type[T],
    translate: Callable[[TranslationContext, T], GenerationRequest],
    exchange: Exchange,
) -> None:
    async with admitted(exchange) as ticket:
        _add_load(exchange)
        durability = exchange.server.durability
        exchange.may_be_repeated = durability is not None and exchange.dialect.is_resumable
        request, asked, prepared = await read(exchange, kind, translate)
        asked.prepared = prepared
        ticket.add_bytes(asked.num_repeated)
        await answer(exchange, ticket, request, asked, RequestTask(exchange))


async def answer(
    exchange: Exchange,
    ticket: Ticket,
    request: msgspec.Struct,
    asked: GenerationRequest,
    task: RequestTask,
) -> None:
    """Generate and answer within the time of the request; `task` may end it before."""
    server = exchange.server
    seconds = server.config.max_request_seconds
    if exchange.is_background:  # it may wait for a long time; its batch has a time of its own
        seconds = MAX_BACKGROUND_SECONDS
    if asked.deadline_ms is not None:
        spent = server.clock() - exchange.began
        seconds = min(seconds, max(0.0, asked.deadline_ms / 1000 - spent))
        server.admission.check_deadline(seconds)
    if exchange.is_background:
        asked.priority = MAX_PRIORITY  # the last of all
    # What generates nothing is computed again sooner than it could be read from a journal.
    # The steps of a beam search are requests of their own, of which a journal knows nothing.
    is_kept = not (exchange.is_background or asked.is_about_prompts or asked.beams)
    if server.durability is not None and is_kept and exchange.dialect.is_resumable:
        await task.run(_answer_durably(exchange, ticket, asked, request, task), seconds)
        return
    work = partial(_generate, exchange, ticket, asked, task)
    await task.run(_with_adapter(exchange, asked, work), seconds)


async def _answer_durably(
    exchange: Exchange,
    ticket: Ticket,
    asked: GenerationRequest,
    request: msgspec.Struct,
    task: RequestTask,
) -> None:
    """Answer a request that the journal has, with the adapter that it had, or a new one."""
    durability = exchange.server.durability
    assert durability is not None
    if not await durability.repeat(exchange, ticket, task):
        work = partial(durability.generate, exchange, ticket, asked, request, task)
        await _with_adapter(exchange, asked, work)


async def _with_adapter(
    exchange: Exchange, asked: GenerationRequest, work: Callable[[], Awaitable[None]]
) -> None:
    """Carry out a request while the adapter that it has selected is kept as it is now."""
    why, exchange.unselected = exchange.unselected, None
    if why is not None:
        raise why
    selected = exchange.selected
    if selected is None or selected.adapter is None:
        await work()
        return
    held = exchange.server.adapters.held(selected.adapter, selected.scale)
    async with held as asked.lora:
        await work()


async def _generate(
    exchange: Exchange, ticket: Ticket, asked: GenerationRequest, task: RequestTask
) -> None:
    prepared = await prepare(exchange.server, asked, exchange.owner, is_background=exchange.yields)
    writer = asked.writer(exchange, prepared)
    kind = Generation if asked.beams is None else BeamGeneration
    await kind(exchange, ticket, prepared, writer, task).run()


@asynccontextmanager
async def admitted(exchange: Exchange, num_bytes: int | None = None) -> AsyncIterator[Ticket]:
    """Admit a request to the queue before its body is read; let it leave whatever happens.

    `num_bytes` is its size, if that does not depend on a body.
    """
    server = exchange.server
    if server.idle is not None:
        await server.idle.use()
    refusal = server.refusal()
    if refusal is not None:
        server.metrics.reject(refusal.code or "unavailable")
        raise refusal
    if num_bytes is None:
        length = exchange.headers.get("content-length", "")
        num_bytes = int(length[:20]) if length.isdecimal() else server.config.max_body_bytes
    ticket = server.admission.register(
        exchange.owner,
        min(num_bytes, server.config.max_body_bytes),
        is_background=exchange.yields,
    )
    try:
        yield ticket
    finally:
        ticket.leave()


def _add_load(exchange: Exchange) -> None:
    """Let the response have the load at the time of its status line, if the request asks for it."""
    if exchange.headers.get(_LOAD_ASKED, "").lower() in ("text", "json"):
        exchange.late_headers = _load_report


def _load_report(exchange: Exchange) -> Headers:
    """Return the header in the format that the request names."""
    load: dict[str, Any] = exchange.server.metrics.load()
    if exchange.headers[_LOAD_ASKED].lower() == "json":
        return [(_LOAD, b"JSON " + encode({"named_metrics": load}))]
    listed = ", ".join(f"named_metrics.{name}={value}" for name, value in load.items())
    return [(_LOAD, f"TEXT {listed}".encode())]
