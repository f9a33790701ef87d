"""The request and the responses of /v1/chat/completions."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from octavo.dialects.common.schema.sampling import CommonRequest, Count
from octavo.dialects.common.schema.tools import (
    Call,
    CallDelta,
    CalledFunction,
    CalledFunctionDelta,
    Choice,
    FunctionChoice,
    Functions,
    PastCall,
    PastFunction,
    Tools,
)
from octavo.dialects.common.schema.unsupported import CHAT_RULES
from octavo.dialects.common.schema.usage import Usage
from octavo.dialects.common.timings import LlamaTimings, PromptProgress
from octavo.observe.request_timing import RequestTiming
from octavo.serving.schema.prompts import NameInPrompt, Role
from octavo.serving.schema.rules import FieldRules

MAX_MESSAGES = 4096
MAX_PARTS = 4096


class ContentPart(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A part of a message; only text is supported."""

    type: Role
    text: str | None = None
    refusal: str | None = None
    annotations: Any = None  # ignored: sources of the text of an earlier answer
    cache_control: Any = None  # ignored: prefixes are found by their content
    # Fields of other parts, defined so that the error names the type of the part.
    image_url: Any = None
    input_audio: Any = None
    audio_url: Any = None
    video_url: Any = None
    file: Any = None
    uuid: Any = None


class Message(Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of the conversation."""

    role: Role
    content: str | Annotated[list[ContentPart | str], Meta(max_length=MAX_PARTS)] | None = None
    name: NameInPrompt | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[PastCall], Meta(max_length=MAX_PARTS)] | None = None
    tool_call_id: NameInPrompt | None = None  # in a tool's message: the call that it answers
    function_call: PastFunction | None = None  # the older form of one call
    refusal: str | None = None  # used as the content if that is null
    annotations: Any = None  # ignored: sources of the text of an earlier answer
    cache_control: Any = None  # ignored: prefixes are found by their content
    # Refused unless they ask for nothing.
    audio: Any = None
    prefix: bool | None = None
    partial: bool | None = None


_CONTENT: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1}]}
# What the types of `messages` do not express, for the OpenAPI document.
MESSAGES_SCHEMA: dict[str, Any] = {
    "properties": {
        "messages": {
            "items": {
                "properties": {
                    "audio": {"type": "null"},
                    "prefix": {"enum": [None, False]},
                    "partial": {"enum": [None, False]},
                },
                "anyOf": [
                    {"properties": {"role": {"const": "assistant"}}},
                    {"required": ["content"], "properties": {"content": _CONTENT}},
                    {"required": ["refusal"], "properties": {"refusal": {"type": "string"}}},
                ],
            }
        }
    }
}


class PredictedPart(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """A part of a predicted answer."""

    type: Literal["text"] = "text"
    text: str


class Prediction(Struct, kw_only=True, forbid_unknown_fields=True):
    """A text that the answer is likely to follow, as when a file is edited; it saves time alone."""

    type: Literal["content"] = "content"
    content: str | Annotated[list[PredictedPart], Meta(max_length=MAX_PARTS)]

    @property
    def text(self) -> str:
        """The text of all parts, one behind the other."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatRequest(CommonRequest, kw_only=True):
    """The request: a conversation and how to answer it."""

    rules: ClassVar[FieldRules] = CHAT_RULES
    schema: ClassVar[dict[str, Any]] = {"allOf": [MESSAGES_SCHEMA]}
    messages: Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Count | None = None  # instead of max_tokens
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    echo: bool = False  # begin the answer with the last message, if it is the assistant's
    add_generation_prompt: bool | None = None  # default: true, unless the last message is continued
    continue_final_message: bool = False
    add_special_tokens: bool = False
    documents: Annotated[list[dict[str, Any]], Meta(max_length=1024)] | None = None
    chat_template: str | None = None  # `ChatTemplate` limits its length
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] | None = None
    tools: Tools | None = None
    tool_choice: Choice | None = None  # default: auto
    parallel_tool_calls: bool | None = None  # false: an answer has one call at most
    functions: Functions | None = None  # the older form of tools
    function_call: FunctionChoice | None = None  # the older form of tool_choice
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = (
        None
    )
    return_assistant_tokens_mask: bool | None = None  # of the prompt; /render alone has it
    prediction: Prediction | None = None  # OpenAI's predicted outputs
    timings_per_token: bool | None = None  # llama-server's times, in each chunk of a stream
    return_progress: bool | None = None  # a stream has a chunk for each part of the prompt
    verbose: bool | None = None  # the answer has the prompt, as llama-server writes it
    include_reasoning: bool | None = None  # false: the answer has no reasoning, which still counts


class TopLogprob(Struct, kw_only=True):
    """A likely token at a position."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(Struct, kw_only=True):
    """The generated token at a position, and the likeliest ones."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Struct, kw_only=True):
    """Log-probabilities for each token."""

    content: list[TokenLogprob]
    refusal: list[TokenLogprob] | None = None


class AnswerMessage(Struct, kw_only=True):
    """The message that the model generated; calls are left out where there are none."""

    role: str
    content: str | None
    refusal: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None  # the same
    annotations: list[Any] = []  # of other servers' searches in the web
    tool_calls: list[Call] | UnsetType = UNSET
    function_call: CalledFunction | UnsetType = UNSET


class ChatChoice(Struct, kw_only=True):
    """One of the `n` answers."""

    index: int
    message: AnswerMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    token_ids: list[int] | None = None


class Verbose(Struct, kw_only=True):
    """The prompt of an answer, and its numbers of tokens."""

    prompt: str
    tokens_evaluated: int
    tokens_cached: int
    tokens_predicted: int


class ChatResponse(Struct, kw_only=True):
    """The response of a request without a stream; what does not apply is null, not missing."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    service_tier: str | None = None
    system_fingerprint: str | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    prompt_token_ids: list[int] | None = None
    prompt_text: str | None = None
    kv_transfer_params: dict[str, Any] | None = None
    metrics: RequestTiming | UnsetType = UNSET
    timings: LlamaTimings | UnsetType = UNSET
    verbose: Verbose | UnsetType = field(default=UNSET, name="__verbose")
    explain: dict[str, Any] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class Delta(Struct, kw_only=True):
    """The new part of an answer."""

    role: str | UnsetType = UNSET
    content: str | UnsetType | None = UNSET  # null beside the role: the answer will be calls
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET  # the same
    tool_calls: list[CallDelta] | UnsetType = UNSET
    function_call: CalledFunctionDelta | UnsetType = UNSET


class ChunkChoice(Struct, kw_only=True):
    """The new part of one of the answers."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | UnsetType | None = UNSET
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(Struct, kw_only=True):
    """The payload of one event of a stream."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    object: str = "chat.completion.chunk"
    system_fingerprint: str | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType = UNSET
    metrics: RequestTiming | UnsetType = UNSET
    timings: LlamaTimings | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    verbose: Verbose | UnsetType = field(default=UNSET, name="__verbose")
    explain: dict[str, Any] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET
