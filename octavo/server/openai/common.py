"""The parts that all routes share that generate: admission, chunk templates, the usage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from octavo.server.admission import Ticket
from octavo.server.generation import TokenCounts
from octavo.server.http.exchange import Exchange, encode
from octavo.server.schema.chat import ChatChunk
from octavo.server.schema.completion import CompletionResponse
from octavo.server.schema.usage import PromptTokensDetails, Usage
from octavo.text.tokenizer import Tokenizer

PIECE = 4096  # token ids that are decoded without a turn of the event loop
TEXT = "\0"  # the placeholder for a template's text; nothing after a choice contains it


class Template:
    """A chunk of a stream in which only the text changes from one to the next."""

    def __init__(self, chunk: ChatChunk | CompletionResponse) -> None:
        self._before, _, self._after = encode(chunk).rpartition(encode(TEXT))

    def filled(self, text: str) -> bytes:
        """Return the encoded chunk with this text."""
        return b"%b%b%b" % (self._before, encode(text), self._after)


@asynccontextmanager
async def admitted(exchange: Exchange) -> AsyncIterator[Ticket]:
    """Admit a request to the queue before its body is read; let it leave whatever happens."""
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


async def in_pieces(token_ids: list[int]) -> AsyncIterator[list[int]]:
    """Yield the token ids in pieces, and let other requests run before each of them."""
    for start in range(0, len(token_ids), PIECE):
        await asyncio.sleep(0)
        yield token_ids[start : start + PIECE]


async def decoded(tokenizer: Tokenizer, token_ids: list[int]) -> str:
    """Return the text with its special tokens, like `Tokenizer.decode`, but in pieces."""
    stream = tokenizer.detokenizer(skip_special_tokens=False)
    parts = [stream.push_all(piece) async for piece in in_pieces(token_ids)]
    return "".join([*parts, stream.finish()])


def usage_of(counts: TokenCounts) -> Usage:
    """Return the token counts in the form of this dialect."""
    return Usage(
        prompt_tokens=counts.prompt,
        completion_tokens=counts.generated,
        total_tokens=counts.prompt + counts.generated,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=counts.cached),
    )


def closing(
    chunk: ChatChunk | CompletionResponse, usage: Usage | None, explanation: dict[str, Any] | None
) -> Iterator[bytes]:
    """Yield a stream's last chunk, which has no choices, if there is anything to put into it."""
    if usage is None and explanation is None:
        return
    if usage is not None:
        chunk.usage = usage
    if explanation is not None:
        chunk.explain = explanation
    yield encode(chunk)
