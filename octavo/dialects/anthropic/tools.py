"""What a request of Anthropic's dialect says about tools and the shape of the answer's text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from octavo.core.structured_outputs import StructuredOutputsParams
from octavo.dialects.anthropic.schema import CountRequest, InputTool, MessagesRequest
from octavo.dialects.common.shapes import shape_at
from octavo.dialects.common.tools import by_name, described, use_of_tools
from octavo.serving.answers.tool_use import NO_TOOLS, ToolUse
from octavo.transport.errors import invalid
from octavo.workers.answer_shape import CallableTool

_PLACE, _OLD_PLACE = "output_config.format", "output_format"


def tool_use(request: CountRequest) -> ToolUse:
    """Return what a request says about tools; raise ApiError for what contradicts itself."""
    choice = request.tool_choice
    if not request.tools:
        if choice is not None and choice.type in ("any", "tool"):
            raise invalid("tool_choice needs tools, which the request does not have", "tool_choice")
        return NO_TOOLS
    tools = by_name(_tools(request.tools))
    if choice is not None and choice.type == "none":
        return NO_TOOLS
    names = None
    if choice is not None and choice.type == "tool":
        if choice.name is None or choice.name not in tools:
            raise invalid(
                f"tool_choice.name: {choice.name!r} is not among tools", "tool_choice.name"
            )
        names = [choice.name]
    shown = [
        described(each.name, parameters=each.input_schema, description=each.description)
        for each in request.tools
    ]
    must_call = choice is not None and choice.type in ("any", "tool")
    wish = False if choice is not None and choice.disable_parallel_tool_use else None
    return use_of_tools(shown, tools, names, must_call=must_call, wish=wish)


def _tools(given: Sequence[InputTool]) -> Iterator[CallableTool]:
    for index, each in enumerate(given):
        schema = _schema_of(each, f"tools[{index}]")
        place = f"[{index}].input_schema"
        yield CallableTool(each.name, schema, strict=bool(each.strict), place=place)


def shape_of(request: MessagesRequest) -> StructuredOutputsParams | None:
    """Return the shape of the answer's text, None if it is free; raise ApiError for a wrong one."""
    given, place = request.output_format, _OLD_PLACE
    if request.output_config is not None and request.output_config.format is not None:
        if given is not None:
            raise invalid(f"{_OLD_PLACE} is the older form of {_PLACE}; send one", _OLD_PLACE)
        given, place = request.output_config.format, _PLACE
    if given is None:
        return None
    return shape_at(place, ".schema", json=given.schema)


def shape_names(request: MessagesRequest) -> dict[str, str]:
    """Return the place in the request where the shape is described, by its neutral name."""
    place = f"{_PLACE if request.output_format is None else _OLD_PLACE}.schema"
    return {"structured_outputs.json": place}


def _schema_of(tool: InputTool, place: str) -> dict[str, Any]:
    """Return the schema of a tool's input; raise ApiError for a tool that has none."""
    if tool.type not in (None, "custom"):
        raise invalid(
            f"{place}.type: {tool.type!r} is a tool that Anthropic's servers run, and this server "
            "runs none; describe a tool of your own, with an input_schema",
            f"{place}.type",
        )
    if tool.input_schema is None:
        raise invalid(f"{place}.input_schema is missing", f"{place}.input_schema")
    return tool.input_schema
