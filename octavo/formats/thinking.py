"""Where the reasoning stands when an answer begins, which the end of the prompt shows."""

from __future__ import annotations

from enum import Enum

from octavo.formats.description import ReasoningFormat


class Thinking(Enum):
    """The state of the reasoning before the first token of the answer."""

    NONE = "none"  # the model may begin it
    OPEN = "open"  # the prompt has begun it
    CLOSED = "closed"  # the prompt has closed it: the model is to answer at once


def thinking_before(reasoning: ReasoningFormat | None, prompt_end: str) -> Thinking:
    """Return the state that the end of a prompt leaves; special tokens are in its text."""
    text = prompt_end.rstrip()
    if reasoning is None:
        return Thinking.CLOSED
    if any(text.endswith(mark.strip()) for mark in reasoning.open):
        return Thinking.OPEN
    if any(text.endswith(mark.strip()) for mark in reasoning.close):
        return Thinking.CLOSED
    return Thinking.NONE
