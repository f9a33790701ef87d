"""The requests and the responses of /v2/chat and /v2/embed."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from octavo.core.config import MAX_PRIORITY
from octavo.dialects.common.schema.chat import MAX_MESSAGES, MAX_PARTS
from octavo.dialects.common.schema.sampling import INT32, Penalty, StopString
from octavo.dialects.common.schema.tools import CallId, PastName, Tools
from octavo.serving.schema.prompts import MAX_PROMPTS, NameInPrompt
from octavo.serving.schema.rules import FieldRules, Unsupported

MAX_DOCUMENTS = 1024
Priority = Annotated[int, Meta(ge=0, le=MAX_PRIORITY)]
ModelName = Annotated[str, Meta(max_length=512)]


class CohereDocument(Struct, kw_only=True, forbid_unknown_fields=True):
    """A document that the answer may use."""

    data: dict[str, Any]
    id: NameInPrompt | None = None


class CohereBlock(Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a message."""

    type: Annotated[str, Meta(min_length=1, max_length=64)]
    text: str | None = None
    thinking: str | None = None
    document: CohereDocument | None = None
    image_url: Any = None  # defined so that the error names the type of the block


class CohereFunction(Struct, kw_only=True, forbid_unknown_fields=True):
    """The function of an earlier call, with its arguments as JSON text."""

    name: PastName
    arguments: str | None = None


class CohereCall(Struct, kw_only=True, forbid_unknown_fields=True):
    """An earlier call in a message."""

    function: CohereFunction
    id: CallId | None = None
    type: Literal["function"] = "function"


class CohereMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of the conversation."""

    role: Literal["user", "assistant", "system", "tool"]
    content: str | Annotated[list[CohereBlock], Meta(max_length=MAX_PARTS)] | None = None
    tool_plan: str | None = None
    tool_calls: Annotated[list[CohereCall], Meta(max_length=MAX_PARTS)] | None = None
    tool_call_id: NameInPrompt | None = None  # in a tool's message: the call that it answers
    citations: Any = None  # ignored: sources of the text of an earlier answer


class CohereThinking(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for reasoning before the answer, or for none."""

    type: Literal["enabled", "disabled"]
    token_budget: Annotated[int, Meta(ge=1, le=INT32)] | None = None  # then it ends


class CohereFormat(Struct, kw_only=True, forbid_unknown_fields=True):
    """The shape of the answer's text."""

    type: Literal["text", "json_object"]
    json_schema: dict[str, Any] | None = None


def _last_message(request: Any) -> list[CohereMessage]:
    return [CohereMessage(role=request.messages[-1].role, content="")]


_IGNORED = {
    "citation_options": "an answer has no citations",
    "request_options": "they concern the client",
    "raw_prompting": "a conversation is always rendered by the chat template",
}
CHAT_RULES = FieldRules(
    open=frozenset({"tools", "documents", "response_format"}),
    closed=frozenset({"response_format"}),
    unsupported={
        "logprobs": Unsupported(
            lambda value: not value, "/v1/chat/completions returns log-probabilities", "false"
        ),
        "connectors": Unsupported(
            lambda value: not value, "this server calls no other servers", "[]"
        ),
    },
    ignored=_IGNORED,
    of_prompts={"messages": _last_message, "documents": lambda request: None},
    other_names={"stop": "stop_sequences", "top_k": "k", "top_p": "p", "message": "messages"},
)


class CohereChatRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The request of /v2/chat: a conversation and how to answer it."""

    rules: ClassVar[FieldRules] = CHAT_RULES
    model: ModelName
    messages: Annotated[list[CohereMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    stream: bool | None = None
    tools: Tools | None = None
    strict_tools: bool | None = None  # the arguments of all tools must fit their schemas
    tool_choice: Literal["REQUIRED", "NONE"] | None = None  # default: the model chooses
    documents: Annotated[list[str | CohereDocument], Meta(max_length=MAX_DOCUMENTS)] | None = None
    response_format: CohereFormat | None = None
    safety_mode: Literal["CONTEXTUAL", "STRICT", "OFF", "NONE"] | None = None  # for the template
    max_tokens: Annotated[int, Meta(ge=1, le=INT32)] | None = None
    stop_sequences: Annotated[list[StopString], Meta(max_length=16)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    k: Annotated[int, Meta(ge=0, le=INT32)] | None = None  # 0: off
    p: Annotated[float, Meta(gt=0, le=1)] | None = None
    thinking: CohereThinking | None = None  # default: as the chat template does
    priority: Priority = 0


class CohereUsage(Struct, kw_only=True):
    """The tokens of a request."""

    billed_units: dict[str, int]
    tokens: dict[str, int]
    cached_tokens: int


class CohereAnswer(Struct, kw_only=True):
    """The message that the model has written."""

    role: str = "assistant"
    tool_plan: str | UnsetType = UNSET
    tool_calls: list[dict[str, Any]] | UnsetType = UNSET
    content: list[dict[str, Any]] | UnsetType = UNSET


class CohereChatResponse(Struct, kw_only=True):
    """The response of a request without a stream."""

    id: str
    finish_reason: str
    message: CohereAnswer
    usage: CohereUsage


class CohereEvent(Struct, kw_only=True):
    """The payload of an event of a stream; which fields there are depends on its type."""

    type: str
    id: str | None = None
    index: int | None = None
    delta: dict[str, Any] | None = None


class CohereInput(Struct, kw_only=True, forbid_unknown_fields=True):
    """One input in blocks of text, which are joined by line breaks."""

    content: Annotated[list[CohereBlock], Meta(min_length=1, max_length=MAX_PARTS)]


EmbeddingType = Literal["float", "int8", "uint8", "binary", "ubinary", "base64"]
InputType = Literal["search_document", "search_query", "classification", "clustering", "image"]


def _no_texts(request: Any) -> Any:
    return None if request.texts is None else [""] * len(request.texts)


def _no_inputs(request: Any) -> Any:
    empty = CohereInput(content=[CohereBlock(type="text", text="")])
    return None if request.inputs is None else [empty] * len(request.inputs)


EMBED_RULES = FieldRules(
    unsupported={
        "images": Unsupported(lambda value: not value, "only text is supported; leave it out", "[]")
    },
    ignored=_IGNORED,
    of_prompts={"texts": _no_texts, "inputs": _no_inputs},
    other_names={"input": "texts", "dimensions": "output_dimension"},
    other_routes={"prompt_name": "/v1/embeddings", "encoding_format": "/v1/embeddings"},
)


class CohereEmbedRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The request of /v2/embed: texts, or inputs in blocks."""

    rules: ClassVar[FieldRules] = EMBED_RULES
    schema: ClassVar[dict[str, Any]] = {
        "oneOf": [
            {"required": ["texts"], "properties": {"inputs": {"type": "null"}}},
            {"required": ["inputs"], "properties": {"texts": {"type": "null"}}},
        ]
    }
    model: ModelName
    texts: Annotated[list[str], Meta(min_length=1, max_length=MAX_PROMPTS)] | None = None
    inputs: Annotated[list[CohereInput], Meta(min_length=1, max_length=MAX_PROMPTS)] | None = None
    input_type: InputType | None = None  # chooses what the model expects before a text
    # Default: float.
    embedding_types: Annotated[list[EmbeddingType], Meta(min_length=1, max_length=16)] | None = None
    truncate: Literal["NONE", "START", "END"] = "END"  # what a longer text loses
    max_tokens: Annotated[int, Meta(ge=1, le=INT32)] | None = None  # of each text
    output_dimension: Annotated[int, Meta(ge=1, le=INT32)] | None = None
    priority: Priority = 0


class CohereEmbedResponse(Struct, kw_only=True):
    """The response of /v2/embed."""

    id: str
    embeddings: dict[str, list[Any]]  # by their type
    meta: dict[str, Any]
    texts: list[str] | UnsetType = UNSET  # those of the request
    response_type: str = "embeddings_by_type"
