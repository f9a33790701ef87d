"""What a request of the Responses API says about tools and the shape of the answer's text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.dialects.common import shapes
from octavo.dialects.common.schema.shapes import JsonSchema, ResponseFormat, ShapeFields
from octavo.dialects.common.tools import (
    NO_ARGUMENTS,
    by_name,
    check_arguments,
    check_size,
    shown_function,
    use_of_tools,
)
from octavo.dialects.responses.namespaces import Flat, chosen, flattened
from octavo.dialects.responses.schema import (
    ChoiceOfTools,
    InputTokensRequest,
    ResponsesRequest,
    TextFormat,
)
from octavo.serving.answers.tool_use import NO_TOOLS, ToolUse
from octavo.serving.schema.near_names import not_among
from octavo.transport.errors import ApiError, invalid, not_yet
from octavo.workers.answer_shape import CallableTool

_FORMATS = ("text", "json_object", "json_schema")
# Places of the shape in OpenAI's other requests, and in those of this API.
PLACES = {
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
    tools = by_name(_tools(functions))
    check_size([flat.function for flat in functions], "tools", "have")
    if choice == "none":
        return NO_TOOLS
    names, must_call = _wanted(choice, functions)
    shown = [shown_function(each.function) for each in functions]
    wish = request.parallel_tool_calls
    return use_of_tools(shown, tools, names, must_call=must_call, wish=wish)


def _tools(given: list[Flat]) -> Iterator[CallableTool]:
    for flat in given:
        each = flat.function
        assert each.name is not None
        check_arguments(each.parameters, f"tools{flat.place}")
        parameters, place = each.parameters or NO_ARGUMENTS, f"{flat.place}.parameters"
        yield CallableTool(each.name, parameters, strict=bool(each.strict), place=place)


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


def shape_of(request: ResponsesRequest) -> StructuredOutputsParams | None:
    """Return the shape of the answer's text, None if it is free; raise ApiError for a wrong one."""
    try:
        return shapes.shape_of(_fields(request))
    except ApiError as error:
        raise error.renamed(PLACES) from None


def with_own_place(request: ResponsesRequest, error: ApiError) -> ApiError:
    """Return an error of the shape with the place in the request where it is described."""
    return error.renamed(shapes.own_places(_fields(request))).renamed(PLACES)


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
