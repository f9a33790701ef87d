"""What a chat says about tools, from the fields of OpenAI's dialect, old ones and new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.dialects.common.schema.chat import ChatRequest
from octavo.dialects.common.schema.tokens import TokenizeRequest
from octavo.dialects.common.schema.tools import (
    MAX_TOOLS_BYTES,
    FunctionTool,
    NamedFunction,
    ToolChoice,
)
from octavo.serving.answers.tool_use import NO_TOOLS, ToolUse
from octavo.transport.errors import invalid
from octavo.transport.exchange import encode
from octavo.workers.answer_shape import CallableTool

# The arguments of a function that is described without any.
NO_ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}


def tool_use(request: ChatRequest | TokenizeRequest) -> ToolUse:
    """Return what a request says about tools; raise ApiError for what contradicts itself."""
    functions, field, is_old = _functions(request)
    choice, named = _choice(request, is_old=is_old)
    if not functions:
        if choice is not None and choice not in ("none", "auto"):
            raise invalid(f"{named} needs {field}, which the request does not have", named)
        return NO_TOOLS
    _check(functions, field, is_old=is_old)
    if choice == "none":
        return NO_TOOLS
    names, must_call = _wanted(choice, named)
    is_one = must_call and not isinstance(choice, str) and names is not None and len(names) == 1
    wish = getattr(request, "parallel_tool_calls", None)
    inner = "" if is_old else ".function"
    tools = {
        each.name: CallableTool(
            each.name,
            each.parameters or NO_ARGUMENTS,
            strict=bool(each.strict),
            place=f"[{index}]{inner}.parameters",
        )
        for index, each in enumerate(functions)
    }
    for name in names or ():
        if name not in tools:
            raise invalid(f"{named} names {name!r}, which is not among {field}", named)
    return ToolUse(
        described=tuple({"type": "function", "function": _described(each)} for each in functions),
        callable=tuple(tools[name] for name in dict.fromkeys(names or tools)),
        must_call=must_call,
        only_these=names is not None and len(set(names)) < len(tools),
        # A model that must call one tool repeats the call where it may.
        is_parallel=(wish is True if is_one else wish is not False) and not is_old,
        is_old=is_old,
    )


def _functions(
    request: ChatRequest | TokenizeRequest,
) -> tuple[Sequence[FunctionTool], str, bool]:
    """Return the functions, the field that has them, and whether it is the older one."""
    old = request.functions if isinstance(request, ChatRequest) else None
    if not old:
        return [each.function for each in request.tools or ()], "tools", False
    if request.tools:
        raise invalid("functions is the older form of tools; give only one of them", "functions")
    return old, "functions", True


def _choice(
    request: ChatRequest | TokenizeRequest, *, is_old: bool
) -> tuple[str | ToolChoice | NamedFunction | None, str]:
    """Return the choice as it was sent, and its field."""
    if not isinstance(request, ChatRequest):
        return None, "tool_choice"
    if is_old or (request.tool_choice is None and not request.tools):
        if request.tool_choice not in (None, "auto", "none"):
            raise invalid("tool_choice is for tools; functions take function_call", "tool_choice")
        return request.function_call, "function_call"
    if request.function_call not in (None, "auto", "none"):
        raise invalid("function_call is for functions; tools take tool_choice", "function_call")
    return request.tool_choice, "tool_choice"


def _wanted(
    choice: str | ToolChoice | NamedFunction | None, named: str
) -> tuple[list[str] | None, bool]:
    """Return the names of the tools that may be called, None for all, and whether one must be."""
    match choice:
        case NamedFunction():
            return [choice.name], True
        case ToolChoice(type="function", function=NamedFunction() as function):
            return [function.name], True
        case ToolChoice(type="allowed_tools", allowed_tools=allowed) if allowed is not None:
            names = [each.function.name for each in allowed.tools]
            return names, allowed.mode == "required"
        case ToolChoice():
            missing = f"{named}.{choice.type}"
            raise invalid(f"{missing} is missing: it says which tool", missing)
    return None, choice in ("required", "any")


def _check(functions: Sequence[FunctionTool], field: str, *, is_old: bool) -> None:
    """Raise ApiError for a name given twice, arguments that are no object, and too much of all."""
    inner = "" if is_old else ".function"
    places: dict[str, str] = {}
    for index, each in enumerate(functions):
        where = f"{field}[{index}]{inner}"
        if each.name in places:
            raise invalid(
                f"{where}.name: {each.name!r} is also the name of {places[each.name]}; each "
                "needs a name of its own",
                f"{where}.name",
            )
        places[each.name] = where
        kind = (each.parameters or {}).get("type", "object")
        if kind != "object":
            raise invalid(
                f"{where}.parameters.type must be 'object', whose properties are the arguments, "
                f"not {str(kind)[:64]!r}",
                f"{where}.parameters.type",
            )
    size = len(encode(functions))
    if size > MAX_TOOLS_BYTES:
        raise invalid(
            f"{field} has {size} bytes of JSON; at most {MAX_TOOLS_BYTES} are accepted: describe "
            "fewer functions, or in fewer words",
            field,
        )


def _described(function: FunctionTool) -> dict[str, Any]:
    """Return a function as templates show it; whether it is strict concerns the server alone."""
    described: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        described["description"] = function.description
    if function.parameters is not None:
        described["parameters"] = function.parameters
    return described
