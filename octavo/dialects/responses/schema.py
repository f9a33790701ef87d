"""The requests and the responses of /v1/responses and /v1/responses/input_tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from octavo.core.config import MAX_PRIORITY
from octavo.dialects.common.schema.sampling import (
    INT32,
    MAX_BIASES,
    MAX_DEADLINE_MS,
    MAX_STOPS,
    Bias,
    Count,
    ExtraArgs,
    Name,
    Penalty,
    Share,
    StopString,
    TokenId,
)
from octavo.dialects.common.schema.shapes import StructuredOutputs
from octavo.dialects.common.schema.tools import MAX_TOOLS, ToolName
from octavo.dialects.common.schema.unsupported import OF_BEAMS, OF_MEDIA, UNSUPPORTED
from octavo.dialects.responses.items import kept_of
from octavo.observe.request_timing import RequestTiming
from octavo.serving.schema.rules import FieldRules, Unsupported

MAX_ITEMS = 4096
MAX_PARTS = 4096
MAX_LOGPROBS = 20

Kind = Annotated[str, Meta(min_length=1, max_length=64)]
Identity = Annotated[str, Meta(min_length=1, max_length=256)]


class Part(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A part of an item; only text is supported."""

    type: Kind
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None  # ignored: sources of the text of an earlier answer
    logprobs: Any = None  # ignored: those of an earlier answer
    prompt_cache_breakpoint: Any = None  # ignored: prefixes are found by their content
    # Fields of other parts, defined so that the error names the type of the part.
    image_url: Any = None
    detail: Any = None
    input_audio: Any = None
    file_id: Any = None
    file_data: Any = None
    file_url: Any = None
    filename: Any = None


Parts = Annotated[list[Part], Meta(max_length=MAX_PARTS)]


class InputItem(Struct, kw_only=True, forbid_unknown_fields=True):
    """A message, a call, its result, or the reasoning of an earlier answer."""

    type: Kind | None = None  # default: message
    id: Name | None = None
    role: Literal["user", "assistant", "system", "developer"] | None = None  # of a message
    content: str | Parts | None = None  # of a message, or of the reasoning
    call_id: Identity | None = None  # of a call, or of the call that a result belongs to
    name: Annotated[str, Meta(max_length=256)] | None = None  # of the function
    arguments: str | None = None  # JSON
    output: str | Parts | None = None  # of the function
    summary: Parts | None = None  # of the reasoning
    encrypted_content: str | None = None  # ignored: reasoning is not encrypted here
    status: Any = None  # ignored: what is sent is there
    phase: Any = None  # ignored: templates do not use it
    namespace: Name | None = None  # of the function
    caller: Any = None  # ignored: only the model calls
    is_async: Any = field(default=None, name="async")  # ignored: calls are made by the client


Items = Annotated[list[InputItem], Meta(max_length=MAX_ITEMS)]


class NamespacedFunction(Struct, kw_only=True, forbid_unknown_fields=True):
    """A function, which the client calls."""

    type: Kind
    name: ToolName | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None  # none: it takes no arguments
    strict: bool | None = None  # the arguments must fit the schema
    output_schema: Any = None  # ignored: templates do not show it
    allowed_callers: Any = None  # ignored: only the model calls
    defer_loading: Any = None  # ignored: all tools are shown
    is_async: Any = field(default=None, name="async")  # ignored: calls are made by the client


class InputFunction(NamespacedFunction, kw_only=True):
    """A tool: a function, or a namespace of several."""

    tools: Annotated[list[NamespacedFunction], Meta(max_length=MAX_TOOLS)] | None = None


class ChosenTool(Struct, kw_only=True, forbid_unknown_fields=True):
    """A function by its name."""

    name: Annotated[str, Meta(max_length=128)] | None = None
    type: Kind = "function"


class ChoiceOfTools(Struct, kw_only=True, forbid_unknown_fields=True):
    """A function that must be called, or the tools that may be."""

    type: Kind
    name: Annotated[str, Meta(max_length=128)] | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: Annotated[list[ChosenTool], Meta(min_length=1, max_length=MAX_TOOLS)] | None = None


class TextFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """The shape of the answer's text."""

    type: Kind  # text, json_object, json_schema
    name: Name | None = None
    description: str | None = None
    strict: bool | None = None  # false: what cannot be enforced is left out, with a warning
    body: dict[str, Any] | None = field(default=None, name="schema")


class TextOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """The shape and the length of the answer's text."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None  # for the chat template


class ReasoningOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """The effort of reasoning."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Any = None  # ignored: the answer has the reasoning itself
    generate_summary: Any = None  # the older name of the same
    context: Any = None  # ignored: the client or the store chooses what is sent again
    mode: Any = None  # ignored: there is one


class ResponseStreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """The contents of a stream besides the answer."""

    include_obfuscation: bool | None = None  # ignored: events are not padded


def _empty(value: Any) -> bool:
    return value is None or value in ([], {}, "")


_OF_CHATS = ("tools", "tool_choice", "functions", "function_call", "suffix", "best_of", "schema")
UNSUPPORTED_FIELDS: Mapping[str, Unsupported] = {
    **{name: rule for name, rule in UNSUPPORTED.items() if name not in _OF_CHATS},
    **OF_BEAMS,
    "conversation": Unsupported(
        _empty, "conversations are not kept as such; use previous_response_id", "null"
    ),
    "prompt": Unsupported(_empty, "prompts are not kept; send them as input", "null"),
    "context_management": Unsupported(
        _empty, "conversations are not compacted; use truncation", "[]"
    ),
    "moderation": Unsupported(_empty, "this server moderates nothing", "null"),
    "background_options": Unsupported(_empty, "requests are answered in their order", "{}"),
    "previous_input_messages": Unsupported(_empty, "use previous_response_id", "[]"),
    "messages": Unsupported(_empty, "this route takes input; or use /v1/chat/completions", "[]"),
}
_OF_PROMPTS: Mapping[str, Callable[[Any], Any]] = {
    "input": lambda request: "",
    "chat_template_kwargs": lambda request: None,
}
RULES = FieldRules(
    open=frozenset({"tools", "text", "chat_template_kwargs", "structured_outputs"}),
    unsupported=UNSUPPORTED_FIELDS,
    ignored={
        **OF_MEDIA,
        "user": "the API key identifies the user",
        "safety_identifier": "the API key identifies the user",
        "service_tier": "there is only one",
        "prompt_cache_key": "prefixes are found by their content",
        "prompt_cache_retention": "prefixes are kept until their memory is needed",
        "prompt_cache_options": "prefixes are found by their content",
        "session_id": "prefixes are found by their content",
        "max_tool_calls": "it limits tools that run at OpenAI, and none do here",
        "access_programs": "the API key decides what is served",
        "image": "this server reads text",
    },
    of_prompts=_OF_PROMPTS,
    kept=kept_of,
    other_names={
        "max_tokens": "max_output_tokens",
        "max_completion_tokens": "max_output_tokens",
        "response_format": "text",
        "reasoning_effort": "reasoning",
    },
)


class InputTokensRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that make a prompt: what precedes the answer."""

    rules: ClassVar[FieldRules] = replace(RULES, kept=FieldRules().kept)
    input: str | Items | None = None
    model: Annotated[str, Meta(max_length=512)] | None = None  # default: the served model
    instructions: str | None = None  # of this answer alone
    previous_response_id: Identity | None = None
    truncation: Literal["auto", "disabled"] | None = None
    tools: Annotated[list[InputFunction], Meta(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChoiceOfTools | None = None
    parallel_tool_calls: bool | None = None  # false: an answer has one call at most
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] | None = None


class ResponsesRequest(InputTokensRequest, kw_only=True):
    """The request: what precedes the answer, and how to answer it."""

    rules: ClassVar[FieldRules] = RULES
    input: str | Items
    store: bool | None = None  # default: true
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    include: Annotated[list[Kind], Meta(max_length=64)] | None = None
    metadata: (
        Annotated[
            dict[
                Annotated[str, Meta(max_length=64)],
                Annotated[str, Meta(max_length=512)],
            ],
            Meta(max_length=16),
        ]
        | None
    ) = None
    max_output_tokens: Annotated[int, Meta(ge=1, le=INT32)] | None = None  # reduced to what fits
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)] | None = None
    # vLLM's additions
    top_k: Annotated[int, Meta(ge=-1, le=INT32)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    min_tokens: Count | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=MAX_BIASES)] | None = None
    vllm_xargs: ExtraArgs | None = None  # for the processors of --logits-processors
    include_reasoning: bool | None = None  # false: the answer has no reasoning, which still counts
    structured_outputs: StructuredOutputs | None = None  # instead of text.format
    enable_response_messages: bool | None = None  # the response has the prompt and answer as tokens
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    request_id: Annotated[str, Meta(max_length=256)] | None = None  # without an x-request-id header
    deadline_ms: Annotated[int, Meta(ge=1, le=MAX_DEADLINE_MS)] | None = None


class InputTokensDetails(Struct, kw_only=True):
    """The input tokens, by kind."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputTokensDetails(Struct, kw_only=True):
    """The generated tokens, by kind."""

    reasoning_tokens: int = 0


class ResponseUsage(Struct, kw_only=True):
    """The tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class RawMessage(Struct, kw_only=True):
    """A text as the model has it, with its tokens."""

    message: str
    tokens: list[int]
    type: str = "raw_message_tokens"


class ResponseObject(Struct, kw_only=True):
    """A response: what was asked for, and what the model has answered so far."""

    id: str
    created_at: int
    model: str
    status: str
    output: list[dict[str, Any]]
    object: str = "response"
    background: bool = False
    completed_at: int | None = None
    error: dict[str, Any] | None = None
    incomplete_details: dict[str, Any] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: dict[str, Any] = {}
    service_tier: str = "default"
    store: bool = True
    temperature: float | None = None
    text: dict[str, Any] = {}
    tool_choice: Any = "auto"
    tools: list[dict[str, Any]] = []
    top_logprobs: int = 0
    top_p: float | None = None
    truncation: str = "disabled"
    usage: ResponseUsage | None = None
    user: str | None = None
    metrics: RequestTiming | UnsetType = UNSET
    input_messages: list[RawMessage] | UnsetType = UNSET
    output_messages: list[RawMessage] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class ResponseEvent(Struct, kw_only=True):
    """The payload of an event of a stream; which fields there are depends on its type."""

    type: str
    sequence_number: int
    response: ResponseObject | None = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    item: dict[str, Any] | None = None
    part: dict[str, Any] | None = None
    delta: str | None = None
    text: str | None = None
    arguments: str | None = None
    name: str | None = None
    logprobs: list[dict[str, Any]] | None = None


class DeletedResponse(Struct, kw_only=True):
    """The end of a response that was deleted."""

    id: str
    object: str = "response"
    deleted: bool = True


class ItemList(Struct, kw_only=True):
    """A page of the items that preceded an answer."""

    data: list[Any]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"
