"""The items of an answer, which grow as its deltas come."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.dialects.responses.namespaces import Origin
from octavo.formats.deltas import Delta, FinishDelta, ReasoningDelta, TextDelta, ToolCallDelta
from octavo.serving.answers.call_ids import made_id

COMPLETED, INCOMPLETE, IN_PROGRESS = "completed", "incomplete", "in_progress"
_PREFIXES = {TextDelta: "msg", ReasoningDelta: "rs", ToolCallDelta: "fc"}


@dataclass(slots=True)
class OutputItem:
    """One item: reasoning, a message or a call."""

    kind: type[Delta]
    id: str
    index: int  # in the answer
    name: str = ""  # of a call's function
    namespace: str = ""  # of the function
    call_id: str = ""
    call: int = -1  # among the calls
    texts: list[str] = field(default_factory=list)
    logprobs: list[Any] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole text so far: of the message, the reasoning or the arguments."""
        return "".join(self.texts)

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


class Output:
    """The items of one answer so far."""

    def __init__(
        self, name: str, origins: Mapping[str, Origin] | None = None, *, has_reasoning: bool
    ) -> None:
        self._name = name  # of the request, from which the ids of items are made
        self._origins = origins or {}
        self._has_reasoning = has_reasoning
        self.items: list[OutputItem] = []
        self.finish: FinishDelta | None = None

    def add(self, delta: Delta) -> tuple[OutputItem | None, str]:
        """Add a delta; return the item that it belongs to, which may be new, and its text."""
        item = self.items[-1] if self.items else None
        if isinstance(delta, FinishDelta):
            self.finish = delta
            return item, ""
        if isinstance(delta, ReasoningDelta) and not self._has_reasoning:
            return item, ""
        call = delta.index if isinstance(delta, ToolCallDelta) else -1
        if item is None or item.kind is not type(delta) or item.call != call:
            item = self._begin(delta, call)
        text = delta.arguments if isinstance(delta, ToolCallDelta) else delta.text
        if text:
            item.texts.append(text)
        return item, text

    def add_all(self, deltas: Iterable[Delta]) -> None:
        """Add the deltas of a whole answer."""
        for delta in deltas:
            self.add(delta)

    def complete(self) -> OutputItem:
        """Return the last item of an answer that has ended; one of nothing is an empty message."""
        return self.items[-1] if self.items else self._begin(TextDelta(""), -1)

    def _begin(self, delta: Delta, call: int) -> OutputItem:
        kind, index = type(delta), len(self.items)
        item = OutputItem(kind, f"{_PREFIXES[kind]}_{self._name}_{index}", index, call=call)
        if isinstance(delta, ToolCallDelta):
            origin = self._origins.get(delta.name or "", Origin(delta.name or ""))
            item.name, item.namespace = origin.name, origin.namespace
            item.call_id = delta.call_id or f"call_{made_id(f'{self._name}/{call}')}"
        self.items.append(item)
        return item

    @property
    def status(self) -> str:
        """The status of an answer that has ended."""
        reason = None if self.finish is None else self.finish.reason
        if reason == "abort":
            return "cancelled"
        return INCOMPLETE if reason == "length" else COMPLETED

    def shown(self, status: str) -> list[dict[str, Any]]:
        """Return all items; the last has the status, and those before it are complete."""
        last = len(self.items) - 1
        return [each.shown(status if each.index == last else COMPLETED) for each in self.items]
