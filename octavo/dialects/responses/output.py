"""What a response has of its answer, which grows: its items, and the model's own text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from octavo.api.outputs import CompletionOutput
from octavo.dialects.common.blocks import Block
from octavo.dialects.responses.schema import RawMessage
from octavo.formats.deltas import ReasoningDelta, ToolCallDelta
from octavo.workers.jobs import PreparedPrompt


@dataclass(slots=True)
class OutputItem(Block):
    """One item: reasoning, a message or a call."""

    id: str = ""
    namespace: str = ""  # of a call's function
    logprobs: list[Any] = field(default_factory=list)

    @property
    def place(self) -> dict[str, Any]:
        """The place of the item's content, as its events have it; that of a call has no part."""
        place: dict[str, Any] = {"item_id": self.id, "output_index": self.index}
        if self.kind is not ToolCallDelta:
            place["content_index"] = 0
        return place

    def part(self) -> dict[str, Any]:
        """Return the only part of the item's content."""
        if self.kind is ReasoningDelta:
            return {"type": "reasoning_text", "text": self.text}
        return {
            "type": "output_text",
            "text": self.text,
            "annotations": [],
            "logprobs": self.logprobs,
        }

    def shown(self, status: str, *, has_content: bool = True) -> dict[str, Any]:
        """Return the item as responses contain it."""
        if self.kind is ToolCallDelta:
            call = {
                "id": self.id,
                "type": "function_call",
                "status": status,
                "call_id": self.call_id,
                "name": self.name,
                "arguments": self.text if has_content else "",
            }
            return {**call, "namespace": self.namespace} if self.namespace else call
        content = [self.part()] if has_content else []
        if self.kind is ReasoningDelta:
            return {
                "id": self.id,
                "type": "reasoning",
                "status": status,
                "summary": [],
                "content": content,
            }
        return {
            "id": self.id,
            "type": "message",
            "status": status,
            "role": "assistant",
            "content": content,
        }


class RawMessages:
    """The prompt and the answer as the model has them: with all marks, and as tokens."""

    def __init__(self, prompt: PreparedPrompt) -> None:
        self._prompt = prompt
        self._texts: list[str] = []
        self._tokens: list[int] = []

    def add(self, one: CompletionOutput) -> None:
        """Add what is new of the answer."""
        self._texts.append(one.text)
        self._tokens += one.token_ids

    @property
    def input(self) -> list[RawMessage]:
        """The prompt, as a list of one."""
        return [RawMessage(message=self._prompt.text, tokens=self._prompt.token_ids)]

    @property
    def output(self) -> list[RawMessage]:
        """The answer so far, as a list of one."""
        return [RawMessage(message="".join(self._texts), tokens=self._tokens)]
