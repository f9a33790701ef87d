"""How a model writes its reasoning, which a limit of its length needs."""

from __future__ import annotations

from dataclasses import dataclass

Mark = tuple[int, ...]  # tokens, one behind the other


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """The marks around a model's reasoning, which a budget of reasoning tokens needs."""

    open: tuple[Mark, ...]  # each begins the reasoning
    close: tuple[Mark, ...]  # each ends it; the first is written when the budget is spent
    is_open: bool = False  # the prompt has begun it
    may_repeat: bool = False  # it may begin again, at any place
