"""Tools in the requests and the responses of chats: descriptions, the choice, calls."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

MAX_TOOLS = 512
MAX_TOOLS_BYTES = 1 << 18  # of all descriptions together, as JSON

# The end is written so that the pattern means the same in Python and in the OpenAPI document.
MAX_TOOL_NAME = 128
ToolName = Annotated[str, Meta(max_length=MAX_TOOL_NAME, pattern=r"^[a-zA-Z0-9_.-]+(?![\s\S])")]
PastName = Annotated[str, Meta(min_length=1, max_length=256)]  # of any model's call
CallId = Annotated[str, Meta(max_length=256)]


class FunctionTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that the model may call, and the JSON schema of its arguments."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None  # none: it takes no arguments
    strict: bool | None = None  # the arguments must fit the schema


class Tool(Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool; only functions are supported."""

    function: FunctionTool
    type: Literal["function"] = "function"
    cache_control: Any = None  # ignored: prefixes are found by their content


class NamedFunction(Struct, kw_only=True, forbid_unknown_fields=True):
    """A function by its name."""

    name: ToolName


class NamedTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool by its name."""

    function: NamedFunction
    type: Literal["function"] = "function"


class AllowedTools(Struct, kw_only=True, forbid_unknown_fields=True):
    """Some of the request's tools, of which the model may or must call one."""

    tools: Annotated[list[NamedTool], Meta(min_length=1, max_length=MAX_TOOLS)]
    mode: Literal["auto", "required"] = "auto"


class ToolChoice(Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that must be called, or the tools that may be."""

    type: Literal["function", "allowed_tools"] = "function"
    function: NamedFunction | None = None
    allowed_tools: AllowedTools | None = None


# "any" is Mistral's word for "required".
Choice = Literal["none", "auto", "required", "any"] | ToolChoice
FunctionChoice = Literal["none", "auto"] | NamedFunction
Tools = Annotated[list[Tool], Meta(max_length=MAX_TOOLS)]
Functions = Annotated[list[FunctionTool], Meta(max_length=MAX_TOOLS)]


class PastFunction(Struct, kw_only=True, forbid_unknown_fields=True):
    """The function of an earlier call; arguments are JSON text, or the object itself."""

    name: PastName
    arguments: str | dict[str, Any] | None = None


class PastCall(Struct, kw_only=True, forbid_unknown_fields=True):
    """An earlier call in a message."""

    function: PastFunction
    id: CallId | None = None
    type: Literal["function"] = "function"
    index: int | None = None  # ignored: the place in the list says it


class CalledFunction(Struct, kw_only=True):
    """The function of a call; the arguments are JSON as the model wrote it."""

    name: str
    arguments: str


class Call(Struct, kw_only=True):
    """A call in an answer."""

    id: str
    function: CalledFunction
    type: str = "function"


class CalledFunctionDelta(Struct, kw_only=True):
    """The new part of a call's function: the name once, then the arguments as they grow."""

    name: str | UnsetType = UNSET
    arguments: str


class CallDelta(Struct, kw_only=True):
    """The new part of a call; its id and type come with the name."""

    index: int
    function: CalledFunctionDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
