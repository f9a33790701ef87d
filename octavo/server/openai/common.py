"""What every route that generates does first and last: take a place, and tell the usage."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from octavo.server.admission import Ticket
from octavo.server.http.exchange import Exchange, encode
from octavo.server.schema.chat import ChatChunk
from octavo.server.schema.completion import CompletionResponse
from octavo.server.schema.usage import Usage

Chunk = TypeVar("Chunk", ChatChunk, CompletionResponse)


TEXT = "\0"  # what stands in a template for the text; nothing behind a choice holds it


class Template:
    """A chunk of a stream, of which the text alone changes from one to the next."""

    def __init__(self, chunk: ChatChunk | CompletionResponse) -> None:
        self._before, _, self._after = encode(chunk).rpartition(encode(TEXT))

    def filled(self, text: str) -> bytes:
        """The chunk as it is written with this text."""
        return b"%b%b%b" % (self._before, encode(text), self._after)


@asynccontextmanager
async def admitted(exchange: Exchange) -> AsyncIterator[Ticket]:
    """A place at the door, before the body is read; given back whatever happens."""
    server = exchange.server
    refusal = server.refusal()
    if refusal is not None:
        server.metrics.rejected.add(1, refusal.code or "unavailable")
        raise refusal
    length = exchange.headers.get("content-length", "")
    num_bytes = int(length[:20]) if length.isdigit() else server.config.max_body_bytes
    ticket = server.admission.register(exchange.owner, min(num_bytes, server.config.max_body_bytes))
    try:
        yield ticket
    finally:
        ticket.leave()


def closing(
    chunk: Chunk, usage: Usage | None, explanation: dict[str, Any] | None
) -> Iterator[Chunk]:
    """A stream's last chunk, without choices, if there is anything for it to tell."""
    if usage is None and explanation is None:
        return
    if usage is not None:
        chunk.usage = usage
    if explanation is not None:
        chunk.explain = explanation
    yield chunk
