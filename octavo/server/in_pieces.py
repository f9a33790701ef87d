"""Work on long lists of token ids in the event loop, with a turn for others before each piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from octavo.text.tokenizer import Tokenizer

PIECE = 4096  # token ids that are decoded without a turn of the event loop


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
