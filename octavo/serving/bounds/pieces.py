"""Texts longer than the model reads, whose vectors are computed in pieces.

The vector of a text is the mean of its pieces' vectors, each counted with its tokens.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from octavo.api.outputs import RequestOutput
from octavo.api.pooling.tasks import hidden_state
from octavo.api.requests import TOO_LONG
from octavo.serving.answers.writer import BaseWriter
from octavo.serving.operation import TURN, GenerationRequest, TokenCounts, Writer
from octavo.transport.errors import ApiError, invalid
from octavo.workers.jobs import PreparedPrompt


def in_pieces(
    asked: GenerationRequest, prompts: Sequence[PreparedPrompt], piece_tokens: int
) -> tuple[list[PreparedPrompt], list[int]]:
    """Return the pieces of all prompts, and the number of the prompt that each belongs to."""
    pieces: list[PreparedPrompt] = []
    owners: list[int] = []
    most = asked.most_in_pieces or 0
    for index, prompt in enumerate(prompts):
        if prompt.num_tokens > most:
            message = (
                f"the prompt has {prompt.num_tokens} tokens; at most {most} are embedded in pieces "
                "(--max-embed-len): shorten it, or send it in parts"
            )
            raise asked.named(invalid(message, "prompt", TOO_LONG), index)
        ids = prompt.ids
        for start in range(0, max(1, len(ids)), piece_tokens):
            part = ids[start : start + piece_tokens]
            owners.append(index)
            pieces.append(
                msgspec.structs.replace(
                    prompt, text="", packed_ids=part.tobytes(), num_tokens=len(part)
                )
            )
    return pieces, owners


class PiecesWriter(BaseWriter):
    """A writer that gets one output for each prompt, however many pieces it had."""

    def __init__(self, writer: Writer, owners: Sequence[int]) -> None:
        self._writer = writer
        self._owners = owners

    def failure(self, error: ApiError) -> bytes:
        """Return the body of an error."""
        return self._writer.failure(error)

    def body(self, outputs: list[RequestOutput], counts: TokenCounts) -> Iterator[bytes]:
        """Yield the response to prompts whose pieces have been put together."""
        whole: list[RequestOutput] = []
        start = 0
        for end in range(1, len(outputs) + 1):
            if end < len(outputs) and self._owners[end] == self._owners[start]:
                continue
            merged = yield from _mean(outputs[start:end])
            whole.append(merged)
            start = end
        yield from self._writer.whole(whole, counts, None)


def _mean(pieces: Sequence[RequestOutput]) -> Any:
    """Yield a `TURN` after each piece; return an output with the mean of their vectors."""
    if len(pieces) == 1:
        return pieces[0]
    total = [0.0] * len(hidden_state(pieces[0]))
    num_tokens = 0
    for piece in pieces:
        weight = len(piece.prompt_ids)
        num_tokens += weight
        values = hidden_state(piece)
        total = [so_far + weight * value for so_far, value in zip(total, values, strict=True)]
        yield TURN
    mean = array("f", (value / num_tokens for value in total))
    return replace(pieces[0], hidden_state=mean)
