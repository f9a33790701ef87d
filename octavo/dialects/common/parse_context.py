"""What a render says of a conversation's tools, so that its answer is read where it is generated.

It comes back from a client, and may say no more than a request to chat may: the same bounds and
the same checks hold.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.sampling import Count
from octavo.dialects.common.schema.tools import (
    AllowedTools,
    Choice,
    FunctionTool,
    NamedFunction,
    NamedTool,
    Tool,
    ToolChoice,
    Tools,
)
from octavo.dialects.common.tools import tool_use
from octavo.serving.answers.tool_use import ToolUse
from octavo.transport.errors import ApiError

FIELD = "parse_context"


class ParseContext(Struct, kw_only=True, forbid_unknown_fields=True):
    """The part of a conversation's request that says how its answer is read."""

    tools: Tools | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    include_reasoning: bool | None = None
    # Ignored: the end of the prompt shows what the template has made of its variables, and calls
    # have ids that do not count those before.
    chat_template_kwargs: dict[str, Any] | None = None
    history_tool_call_cnt: Count = 0


def context_of(use: ToolUse, *, include_reasoning: bool) -> ParseContext:
    """Return what a render says; `use_of` makes the same use of it again."""
    strict = {each.name for each in use.callable if each.strict}
    tools: list[Tool] = []
    for described in (each["function"] for each in use.described):
        function = FunctionTool(
            name=described["name"],
            description=described.get("description"),
            parameters=described.get("parameters"),
            strict=described["name"] in strict or None,
        )
        tools.append(Tool(function=function))
    return ParseContext(
        tools=tools or None,
        tool_choice=_choice(use),
        parallel_tool_calls=use.is_parallel,
        include_reasoning=include_reasoning,
    )


def _choice(use: ToolUse) -> Choice:
    if not use.callable:
        return "none"
    if not use.only_these:
        return "required" if use.must_call else "auto"
    names = [NamedFunction(name=each.name) for each in use.callable]
    if use.must_call and len(names) == 1:
        return ToolChoice(function=names[0])
    allowed = AllowedTools(
        tools=[NamedTool(function=each) for each in names],
        mode="required" if use.must_call else "auto",
    )
    return ToolChoice(type="allowed_tools", allowed_tools=allowed)


def use_of(context: ParseContext) -> ToolUse:
    """Return the use of tools; raise ApiError for one that contradicts itself."""
    request = ChatRequest(
        messages=[],
        tools=context.tools,
        tool_choice=context.tool_choice,
        parallel_tool_calls=context.parallel_tool_calls,
    )
    try:
        return tool_use(request)
    except ApiError as error:
        raise with_place(error) from None


def with_place(error: ApiError) -> ApiError:
    """Return an error about tools with the place that they have in a request for tokens."""
    return error.renamed({error.param: f"{FIELD}.{error.param}"} if error.param else {})


def without_variables(context: ParseContext | None) -> ParseContext | None:
    """Return what is kept of a context while its answer is generated."""
    if context is None or context.chat_template_kwargs is None:
        return context
    return msgspec.structs.replace(context, chat_template_kwargs=None)
