"""What a chat says about tools, from the fields of OpenAI's dialect, old ones and new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

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


class Function(Protocol):
    """A description of a function, in any dialect that names its parts like OpenAI's."""

    name: Any
    description: str | None
    parameters: dict[str, Any] | None


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
    wish = False if is_old else getattr(request, "parallel_tool_calls", None)
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
    shown = [shown_function(each) for each in functions]
    return use_of_tools(shown, tools, names, must_call=must_call, wish=wish, is_old=is_old)


def use_of_tools(
    shown: Iterable[dict[str, Any]],
    tools: Mapping[str, CallableTool],
    names: Sequence[str] | None = None,
    *,
    must_call: bool = False,
    wish: bool | None = None,
    is_old: bool = False,
) -> ToolUse:
    """Return the use of tools of which those with the names may be called, or all.

    The wish is that an answer has several calls, or that it has one at most.
    """
    is_one = must_call and names is not None and len(names) == 1
    return ToolUse(
        described=tuple(shown),
        callable=tuple(tools[name] for name in dict.fromkeys(names or tools)),
        must_call=must_call,
        only_these=names is not None and len(set(names)) < len(tools),
        # A model that must call one tool repeats the call where it may.
        is_parallel=wish is True if is_one else wish is not False,
        is_old=is_old,
    )


def by_name(tools: Iterable[CallableTool]) -> dict[str, CallableTool]:
    """Return tools by their names; raise ApiError for a name that two of them have."""
    found: dict[str, CallableTool] = {}
    for tool in tools:
        if tool.name in found:
            where = f"tools{tool.place.rpartition('.')[0]}.name"
            raise invalid(f"{where}: {tool.name!r} is the name of an earlier tool too", where)
        found[tool.name] = tool
    return found


def described(name: str | None, **fields: Any) -> dict[str, Any]:
    """Return a function as templates show it, without the fields that it lacks."""
    given = {field: value for field, value in fields.items() if value is not None}
    return {"type": "function", "function": {"name": name, **given}}


def shown_function(each: Function) -> dict[str, Any]:
    """Return a function as templates show it; whether it is strict concerns the server alone."""
    return described(each.name, description=each.description, parameters=each.parameters)


def check_arguments(parameters: dict[str, Any] | None, where: str) -> None:
    """Raise ApiError for the arguments of a function that are no object."""
    kind = (parameters or {}).get("type", "object")
    if kind != "object":
        place = f"{where}.parameters.type"
        raise invalid(
            f"{place} must be 'object', whose properties are the arguments, not {str(kind)[:64]!r}",
            place,
        )


def check_size(functions: Sequence[Any], field: str, verb: str = "has") -> None:
    """Raise ApiError for functions that are too long together."""
    size = len(encode(functions))
    if size > MAX_TOOLS_BYTES:
        raise invalid(
            f"{field} {verb} {size} bytes of JSON; at most {MAX_TOOLS_BYTES} are accepted: "
            "describe fewer functions, or in fewer words",
            field,
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
    """Refuse a name given twice, arguments that are no object, and tools that are too large."""
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
        check_arguments(each.parameters, where)
    check_size(functions, field)
