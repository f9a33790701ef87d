"""Answers in blocks: text, reasoning and calls, in the order in which the model writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from octavo.api.outputs import RequestOutput
from octavo.dialects.common.writer import TEXT
from octavo.formats.deltas import Delta, FinishDelta, ReasoningDelta, TextDelta, ToolCallDelta
from octavo.serving.answers.tool_use import made_id
from octavo.serving.answers.writer import BaseWriter
from octavo.serving.operation import TokenCounts
from octavo.transport.exchange import encode


@dataclass(slots=True)
class Block:
    """A part of an answer that is of one kind: text, reasoning or a call."""

    kind: type[Delta]
    index: int  # in the answer
    call: int = -1  # among the calls
    name: str = ""  # of a call's function
    call_id: str = ""
    texts: list[str] = field(default_factory=list)  # those of a call are its arguments

    @property
    def text(self) -> str:
        """The whole text so far, as far as it is kept."""
        return "".join(self.texts)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of a call; what is no JSON object is kept as text under one name."""
        text = self.text
        try:
            value = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError):
            value = None
        return value if isinstance(value, dict) else {"invalid_json": text}


B = TypeVar("B", bound=Block)


class BlockWriter(BaseWriter, Generic[B]):
    """The writer of one answer; its dialect has events that begin a block, add to it and end it.

    The last block of a stream ends where the end of the answer is written.
    """

    id_prefix = ""  # of calls to which the model gives no id
    leaves_out: type[Delta] | None = None  # the deltas that the answer does not have

    def __init__(self, name: str, form: type[B]) -> None:
        self._name = name  # from which the ids of calls are made
        self._form = form  # of the blocks
        self._blocks: list[B] = []
        self._open: B | None = None  # of a stream
        self._sides: Sequence[bytes] = ()  # what is around the new text of the open block
        self._finish: FinishDelta | None = None

    @property
    def _has_calls(self) -> bool:
        return any(block.kind is ToolCallDelta for block in self._blocks)

    def frames(
        self, prompt_index: int, output: RequestOutput, counts: TokenCounts
    ) -> Iterable[bytes]:
        """Yield the events of the deltas; the first of a block opens it."""
        for one in output.outputs:
            for delta in one.deltas:
                if isinstance(delta, FinishDelta):  # a text's end belongs to the frame of the text
                    self._finish = delta
                    continue
                kind, block = type(delta), self._open
                if kind is self.leaves_out:
                    continue
                if block is None or block.kind is not kind or kind is ToolCallDelta:
                    new = self._block_of(delta)
                    if new is not block:
                        yield from self._close()
                        self._open = new
                        yield from self._begin(new)
                text = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
                frame = self._more(text) if text else b""
                if frame:
                    yield frame

    def _close(self) -> Iterable[bytes]:
        """Return the end of the open block, if there is one."""
        block, self._open = self._open, None
        return () if block is None else self._end(block)

    def _read(self, outputs: list[RequestOutput]) -> list[B]:
        """Return the blocks of a whole answer."""
        for delta in outputs[0].outputs[0].deltas:
            if isinstance(delta, FinishDelta):
                self._finish = delta
            elif type(delta) is not self.leaves_out:
                text = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
                self._block_of(delta).texts.append(text)
        return self._blocks

    def _block_of(self, delta: TextDelta | ReasoningDelta | ToolCallDelta) -> B:
        """Return the block that a delta belongs to: the last one, or another that it begins."""
        call = delta.index if isinstance(delta, ToolCallDelta) else -1
        if self._blocks:
            last = self._blocks[-1]
            if last.kind is type(delta) and last.call == call:
                return last
        self._blocks.append(self._new(delta, len(self._blocks)))
        return self._blocks[-1]

    def _new(self, delta: TextDelta | ReasoningDelta | ToolCallDelta, index: int) -> B:
        """Return the block that a delta begins, without its text."""
        if not isinstance(delta, ToolCallDelta):
            return self._form(type(delta), index)
        made = delta.call_id or f"{self.id_prefix}{made_id(f'{self._name}/{delta.index}')}"
        return self._form(ToolCallDelta, index, delta.index, delta.name or "", made)

    def _prepare(self, event: bytes) -> None:
        """Prepare an event of which only the text changes, for which a placeholder stands."""
        self._sides = event.split(encode(TEXT))

    def _begin(self, block: B) -> Iterable[bytes]:
        """Return the events that begin a block, and prepare that of more text."""
        raise NotImplementedError

    def _more(self, text: str) -> bytes:
        """Return the event of more text of the open block; it may be empty."""
        return encode(text).join(self._sides)

    def _end(self, block: B) -> Iterable[bytes]:
        """Return the events that end a block."""
        raise NotImplementedError
