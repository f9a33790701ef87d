"""The requests and the responses of /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from octavo.dialects.common.schema.sampling import ExtraArgs
from octavo.dialects.common.schema.unsupported import OF_MEDIA, OF_VLLM
from octavo.serving.schema.rules import FieldRules, Unsupported

MAX_MESSAGES = 4096
MAX_BLOCKS = 4096
MAX_TOOLS = 512
INT32 = 2**31 - 1

Kind = Annotated[str, Meta(min_length=1, max_length=64)]
Name = Annotated[str, Meta(max_length=256)]
StopSequence = Annotated[str, Meta(min_length=1, max_length=256)]


class ContentBlock(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A part of a message."""

    type: Kind
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None  # ignored: reasoning is not signed here
    data: str | None = None  # of redacted thinking, which no model here can read
    id: Name | None = None  # of a call
    name: Name | None = None  # of the called tool
    input: dict[str, Any] | None = None  # of the call
    tool_use_id: Name | None = None  # the call that this is the result of
    content: str | Annotated[list[ContentBlock], Meta(max_length=MAX_BLOCKS)] | None = (
        None  # of a result
    )
    is_error: bool | None = None  # the tool failed, as its content says
    citations: Any = None  # ignored: sources of the text
    cache_control: Any = None  # ignored: prefixes are found by their content
    # Fields of other blocks, defined so that the error names the type of the block.
    source: Any = None
    title: Any = None
    context: Any = None


Blocks = Annotated[list[ContentBlock], Meta(max_length=MAX_BLOCKS)]


class InputMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Blocks


class Thinking(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for reasoning before the answer, or for none."""

    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: Annotated[int, Meta(ge=1, le=INT32)] | None = None  # then it ends
    display: Any = None  # ignored: reasoning is returned as the model writes it


class InputTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """A tool that the model may call, and the JSON schema of its input."""

    name: Annotated[str, Meta(max_length=128, pattern=r"^[a-zA-Z0-9_.-]+(?![\s\S])")]
    input_schema: dict[str, Any] | None = None  # only tools that run at Anthropic have none
    description: str | None = None
    type: Kind | None = None  # "custom"; others run at Anthropic, and are refused
    strict: bool | None = None  # the input must fit the schema
    cache_control: Any = None  # ignored: prefixes are found by their content
    defer_loading: bool | None = None  # ignored: all tools are shown
    eager_input_streaming: bool | None = None  # ignored: input is always sent as it grows
    input_examples: Any = None  # ignored: templates do not show them
    allowed_callers: Any = None  # ignored: only the model calls


class InputToolChoice(Struct, kw_only=True, forbid_unknown_fields=True):
    """A choice of the tools that the answer may or must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None  # of the tool that must be called
    disable_parallel_tool_use: bool = False


class OutputFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """The shape of the answer's text."""

    schema: dict[str, Any]
    type: Literal["json_schema"] = "json_schema"


class OutputConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """The effort of thinking, and the shape of the answer."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


def _empty(value: Any) -> bool:
    return value is None or value in ([], {}, "")


def _nothing(request: Any) -> None:
    return None


def _last_message(request: Any) -> list[InputMessage]:
    """Return the last message without its content: the answer may continue it."""
    return [InputMessage(role=request.messages[-1].role, content="")]


_OF_PROMPTS: Mapping[str, Callable[[Any], Any]] = {
    "messages": _last_message,
    "system": _nothing,
    "chat_template_kwargs": _nothing,
}
RULES = FieldRules(
    open=frozenset({"chat_template_kwargs", "tools", "output_config", "output_format"}),
    closed=frozenset({"output_format"}),
    unsupported={
        "mcp_servers": Unsupported(_empty, "this server calls no other servers", "[]"),
        "thread": Unsupported(_empty, "this server holds no messages; send them all", "null"),
        "container": Unsupported(_empty, "this server runs no code", '""'),
        **OF_VLLM,
    },
    ignored={
        **OF_MEDIA,
        "metadata": "the API key identifies the user",
        "service_tier": "there is only one",
        "inference_geo": "the server is where it is",
        "context_management": "the client chooses the messages that it sends",
        "betas": "no feature depends on it",
        "cache_control": "prefixes are found by their content",
        "speed": "there is only one",
        "diagnostics": "/v1/requests/{id}/explain says where the time went",
        "user_profile_id": "the API key identifies the user",
        "workspace_id": "the API key identifies the user",
    },
    of_prompts=_OF_PROMPTS,
    other_names={"stop": "stop_sequences", "max_completion_tokens": "max_tokens"},
)


class CountRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that make a prompt: a conversation."""

    rules: ClassVar[FieldRules] = RULES
    messages: Annotated[list[InputMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    model: Annotated[str, Meta(max_length=512)] | None = None  # default: the served model
    system: str | Blocks | None = None
    thinking: Thinking | None = None
    tools: Annotated[list[InputTool], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: InputToolChoice | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None  # the older place of output_config.format
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """The request: a conversation and how to answer it."""

    max_tokens: Annotated[int, Meta(ge=1, le=INT32)]  # reduced to what fits
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT32)] | None = None
    stop_sequences: Annotated[list[StopSequence], Meta(max_length=16)] | None = None
    stream: bool | None = None
    vllm_xargs: ExtraArgs | None = None  # for the processors of --logits-processors
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None


class CountResponse(Struct, kw_only=True):
    """The length of a prompt."""

    input_tokens: int


class MessageUsage(Struct, kw_only=True):
    """The tokens of a request; those from the prefix cache are not among the input's."""

    input_tokens: int
    output_tokens: int
    cache_read_input_tokens: int = 0
    cache_creation_input_tokens: int = 0


class Answer(Struct, kw_only=True):
    """The response of a request without a stream, and the beginning of a stream."""

    id: str
    model: str
    content: list[dict[str, Any]]
    usage: MessageUsage
    type: str = "message"
    role: str = "assistant"
    stop_reason: str | None = None
    stop_sequence: str | None = None


class StreamEvent(Struct, kw_only=True):
    """The payload of an event of a stream; which fields there are depends on its type."""

    type: str
    message: dict[str, Any] | None = None
    index: int | None = None
    content_block: dict[str, Any] | None = None
    delta: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
