"""What a request of the Responses API says about tools and the shape of the answer's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.dialects.common import shapes
from octavo.dialects.common.schema.shapes import JsonSchema, ResponseFormat, ShapeFields
from octavo.dialects.common.schema.tools import MAX_TOOLS_BYTES
from octavo.dialects.common.tools import NO_ARGUMENTS
from octavo.dialects.responses.namespaces import Flat, chosen, flattened
from octavo.dialects.responses.schema import (
    ChoiceOfTools,
    InputTokensRequest,
    NamespacedFunction,
    ResponsesRequest,
    TextFormat,
)
from octavo.serving.answers.tool_use import NO_TOOLS, ToolUse
from octavo.serving.schema.near_names import not_among
from octavo.transport.errors import ApiError, invalid, not_yet
from octavo.transport.exchange import encode
from octavo.workers.answer_shape import CallableTool

_FORMATS = ("text", "json_object", "json_schema")
# Places of the shape in OpenAI's other requests, and in those of this API.
_PLACES = {
    "response_format.json_schema.schema": "text.format.schema",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
}


def tool_use(request: InputTokensRequest) -> ToolUse:
    """Return what a request says about tools; raise ApiError for what contradicts itself."""
    choice = request.tool_choice
    if not request.tools:
        if choice is not None and choice not in ("none", "auto"):
            raise invalid("tool_choice needs tools, which the request does not have", "tool_choice")
        return NO_TOOLS
    functions = flattened(request.tools)
    tools = _tools(functions)
    if choice == "none":
        return NO_TOOLS
    names, must_call = _wanted(choice, functions)
    is_one = must_call and names is not None and len(names) == 1
    wish = request.parallel_tool_calls
    return ToolUse(
        described=tuple(_described(each.function) for each in functions),
        callable=tuple(tools[name] for name in dict.fromkeys(names or tools)),
        must_call=must_call,
        only_these=names is not None and len(set(names)) < len(tools),
        # A model that must call one tool repeats the call where it may.
        is_parallel=wish is True if is_one else wish is not False,
    )


def _tools(given: list[Flat]) -> dict[str, CallableTool]:
    tools: dict[str, CallableTool] = {}
    for flat in given:
        where, each = f"tools{flat.place}", flat.function
        assert each.name is not None
        if each.name in tools:
            raise invalid(
                f"{where}.name: {each.name!r} is the name of an earlier tool too", f"{where}.name"
            )
        kind = (each.parameters or {}).get("type", "object")
        if kind != "object":
            param = f"{where}.parameters.type"
            raise invalid(
                f"{param} must be 'object', whose properties are the arguments, not "
                f"{str(kind)[:64]!r}",
                param,
            )
        tools[each.name] = CallableTool(
            each.name,
            each.parameters or NO_ARGUMENTS,
            strict=bool(each.strict),
            place=f"{flat.place}.parameters",
        )
    size = len(encode([flat.function for flat in given]))
    if size > MAX_TOOLS_BYTES:
        raise invalid(
            f"tools have {size} bytes of JSON; at most {MAX_TOOLS_BYTES} are accepted: describe "
            "fewer functions, or in fewer words",
            "tools",
        )
    return tools


def _wanted(
    choice: str | ChoiceOfTools | None, functions: Sequence[Flat]
) -> tuple[list[str] | None, bool]:
    """Return the names of the tools that may be called, None for all, and whether one must be."""
    if choice is None or isinstance(choice, str):
        return None, choice == "required"
    if choice.type == "function":
        names, must_call = [(choice.name, "tool_choice.name")], True
    elif choice.type == "allowed_tools":
        if choice.tools is None:
            raise invalid("tool_choice.tools is missing: it says which", "tool_choice.tools")
        places = enumerate(choice.tools)
        names = [(each.name, f"tool_choice.tools[{index}].name") for index, each in places]
        must_call = choice.mode == "required"
    else:
        what = "choose a function, or allowed_tools"
        raise not_yet("tool_choice.type", f"{choice.type[:64]!r} is not supported: {what}")
    return [chosen(name, where, functions) for name, where in names], must_call


def _described(tool: NamespacedFunction) -> dict[str, Any]:
    """Return a tool as templates show it."""
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    if tool.parameters is not None:
        function["parameters"] = tool.parameters
    return {"type": "function", "function": function}


def shape_of(request: ResponsesRequest) -> StructuredOutputsParams | None:
    """Return the shape of the answer's text, None if it is free; raise ApiError for a wrong one."""
    try:
        return shapes.shape_of(_fields(request))
    except ApiError as error:
        raise _renamed(error) from None


def with_own_place(request: ResponsesRequest, error: ApiError) -> ApiError:
    """Return an error of the shape with the place in the request where it is described."""
    return _renamed(shapes.with_own_place(_fields(request), error))


def _fields(request: ResponsesRequest) -> ShapeFields:
    """Return the shape as OpenAI's other requests describe it."""
    fields = ShapeFields(structured_outputs=request.structured_outputs)
    given = None if request.text is None else request.text.format
    if given is not None:
        fields.response_format = _response_format(given)
    return fields


def _response_format(given: TextFormat) -> ResponseFormat:
    if given.type not in _FORMATS:
        raise not_among("text.format.type", _FORMATS, given.type)
    if given.type != "json_schema":
        return ResponseFormat(type=given.type)
    schema = JsonSchema(name=given.name, strict=given.strict, body=given.body)
    return ResponseFormat(type=given.type, json_schema=schema)


def _renamed(error: ApiError) -> ApiError:
    for place, own in _PLACES.items():
        error.message = error.message.replace(place, own)
        if error.param is not None:
            error.param = error.param.replace(place, own)
    return error
