"""What a request says about tools, in the terms of no dialect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.workers.answer_shape import CallableTool


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools of one request, and how its answers may use them."""

    described: tuple[dict[str, Any], ...] = ()  # for the chat template
    callable: tuple[CallableTool, ...] = ()  # those that answers may call
    must_call: bool = False
    only_these: bool = False  # the request has others, which answers may not call
    is_parallel: bool = True  # an answer may have several calls
    is_old: bool = False  # asked for as functions, and answered so

    @property
    def field(self) -> str:
        """The field that has the tools."""
        return "functions" if self.is_old else "tools"


NO_TOOLS = ToolUse()
