"""The requests and responses of the routes that generate nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from octavo.core.config import MAX_PRIORITY
from octavo.dialects.common.schema.chat import MAX_MESSAGES, Message
from octavo.dialects.common.schema.unsupported import no_text
from octavo.dialects.embeddings.inputs import INT32, Input, TokenId, inputs_schema
from octavo.serving.schema.model_names import AdapterName
from octavo.serving.schema.prompts import MAX_PROMPT_ITEMS, MAX_PROMPTS, prompts_schema
from octavo.serving.schema.rules import FieldRules, Unsupported

MAX_DEADLINE_MS = 86_400_000

InputTokens = Annotated[list[TokenId], Meta(max_length=MAX_PROMPT_ITEMS)]
TextInput = str | Annotated[list[str | TokenId | InputTokens], Meta(max_length=MAX_PROMPT_ITEMS)]
Texts = str | Annotated[list[str], Meta(max_length=MAX_PROMPTS)]
EncodingFormat = Literal["float", "base64", "bytes", "bytes_only"]
MAX_DESCRIBED = 256  # vectors in a header, of which clients read 64 KiB
ValueType = Literal["float32", "float16", "bfloat16", "fp8_e4m3", "fp8_e5m2"]
ByteOrder = Literal["native", "little", "big"]
TokenTask = Literal["embed", "classify", "token_embed", "token_classify", "plain"]


def _empty(value: Any) -> bool:
    return value is None or value in ([], {}, "")


_TEXT = "only text is supported; leave it out"
UNSUPPORTED: Mapping[str, Unsupported] = {
    "chat_template_kwargs": Unsupported(
        _empty, "templates get the texts alone; leave it out", "{}"
    ),
    "padding": Unsupported(
        lambda value: value in (None, "do_not_pad"),
        "texts of different lengths share a batch without padding",
        '"do_not_pad"',
    ),
    "truncation_side": Unsupported(
        lambda value: value in (None, "right"), "a text is cut at its end", '"right"'
    ),
    "data": Unsupported(_empty, "there are no plugins that read it; send input", "null"),
    "media_io_kwargs": Unsupported(_empty, _TEXT, "{}"),
    "mm_processor_kwargs": Unsupported(_empty, _TEXT, "{}"),
    "images": Unsupported(_empty, _TEXT, "[]"),
    "rank_fields": Unsupported(_empty, "a document is one text; join its fields", "[]"),
    "late_chunking": Unsupported(
        lambda value: not value, "send late_chunking_params, with a chunk_size", "false"
    ),
}
IGNORED: Mapping[str, str] = {
    "user": "the API key identifies the user",
    "safety_identifier": "the API key identifies the user",
    "metadata": "nothing is stored",
    "max_chunks_per_doc": "a document is read whole, or cut by max_tokens_per_doc",
}


def _last_messages(request: Any) -> Any:
    """Return the last message of the conversation, or of each, without its text."""
    given = request.messages
    if given is None:
        return None
    if isinstance(given[0], list):
        return [[Message(role=each[-1].role, content="")] for each in given]
    return [Message(role=given[-1].role, content="")]


def _nothing(request: Any) -> None:
    return None


_TEXTS = ("input", "text_1", "text_2", "data_1", "data_2", "queries", "items", "query")
RULES = FieldRules(
    with_lists=frozenset({"input"}),
    unsupported=UNSUPPORTED,
    ignored=IGNORED,
    of_prompts={
        **{name: no_text(name) for name in _TEXTS},
        "messages": _last_messages,
        **dict.fromkeys(("chat_template", "chat_template_kwargs"), _nothing),
    },
    other_names={
        "prompt": "input",
        "inputs": "input",
        "texts": "input",
        "passages": "documents",
        "top_k": "top_n",
        "truncate": "truncate_prompt_tokens",
    },
    other_routes={"prompt": "/v1/completions"},
)

_WITH_CHATS = {name: rule for name, rule in UNSUPPORTED.items() if name != "chat_template_kwargs"}
INPUT_RULES = replace(RULES, open=RULES.open | {"chat_template_kwargs"}, unsupported=_WITH_CHATS)


class PooledRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that all these routes have."""

    rules: ClassVar[FieldRules] = RULES
    model: Annotated[str, Meta(max_length=512)] | None = None  # default: the served model
    lora_path: AdapterName | None = None  # an adapter's name, beside the model's
    # A longer text is cut to so many tokens; -1: to what the model can read.
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=INT32)] | None = None
    # An embedding gets length one; classes and scores become probabilities.
    use_activation: bool | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    request_id: Annotated[str, Meta(max_length=256)] | None = None  # without an x-request-id header
    deadline_ms: Annotated[int, Meta(ge=1, le=MAX_DEADLINE_MS)] | None = None


Conversations = Annotated[
    list[Message | list[Message]], Meta(min_length=1, max_length=MAX_MESSAGES)
]
_OFF = {"enum": [False]}
_MESSAGES_SCHEMA: dict[str, Any] = {
    "required": ["messages"],
    "properties": {
        "messages": {"type": "array"},
        "input": {"type": "null"},
        "prompt_name": {"enum": [None, ""]},
    },
    "anyOf": [
        {"properties": {"add_generation_prompt": _OFF}},
        {"properties": {"continue_final_message": _OFF}},
    ],
}
_INPUT_SCHEMA: dict[str, Any] = {
    "required": ["input"],
    "allOf": [inputs_schema("input")],
    "properties": {
        "messages": {"type": "null"},
        "chat_template": {"enum": [None, ""]},
        "chat_template_kwargs": {"enum": [None, {}]},
        "add_generation_prompt": _OFF,
        "continue_final_message": _OFF,
    },
}


class InputRequest(PooledRequest, kw_only=True):
    """A request about texts or lists of token ids in `input`, or conversations in `messages`."""

    rules: ClassVar[FieldRules] = INPUT_RULES
    schema: ClassVar[dict[str, Any]] = {"oneOf": [_INPUT_SCHEMA, _MESSAGES_SCHEMA]}
    input: Input | None = None
    messages: Conversations | None = None  # a conversation, or a list of conversations
    chat_template: str | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=64)] | None = None
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    add_special_tokens: bool | None = None  # default: true for input, false for messages
    pooling: Literal["last", "mean", "cls"] | None = None  # default: the model's own
    prompt_name: Annotated[str, Meta(max_length=256)] | None = None  # put before each text


class LateChunking(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request for the vectors of the parts of a text, which is read whole."""

    chunk_size: Annotated[int, Meta(ge=1, le=2**63 - 1)]  # tokens of a part


class EmbeddingRequest(InputRequest, kw_only=True):
    """The request of /v1/embeddings."""

    dimensions: Annotated[int, Meta(ge=1, le=INT32)] | None = None
    encoding_format: EncodingFormat | None = None
    embed_dtype: ValueType = "float32"  # in base64 and in bytes
    endianness: ByteOrder = "native"  # in base64 and in bytes
    normalize: bool | None = None  # the older name of use_activation
    late_chunking_params: LateChunking | None = None


class PoolingRequest(EmbeddingRequest, kw_only=True):
    """The request of /pooling."""

    task: TokenTask | None = None  # default: an embedding, or the classes of a classifier


class ClassifyRequest(InputRequest, kw_only=True):
    """The request of /classify."""

    activation: bool | None = None  # the older name of use_activation


# The fields of texts that are compared, of which a request has one pair.
PAIRED = (
    *(("text_1", "text_2"), ("data_1", "data_2")),
    *(("queries", "documents"), ("queries", "items")),
)


MostTokens = Annotated[int, Meta(ge=0, le=INT32)]


class PairRequest(PooledRequest, kw_only=True):
    """The fields of requests that compare texts."""

    instruction: str | None = None  # of models that read one
    activation: bool | None = None  # the older name of use_activation
    # Longer texts are cut, each by itself and before truncate_prompt_tokens; 0: they are not.
    max_tokens_per_query: MostTokens | None = None
    max_tokens_per_doc: MostTokens | None = None


def _pair_schema(names: tuple[str, str]) -> dict[str, Any]:
    """Return the schema of requests with this pair alone."""
    others = {name for pair in PAIRED for name in pair}.difference(names)
    fields: dict[str, Any] = {name: {"not": {"type": "null"}} for name in names}
    fields.update({name: {"type": "null"} for name in sorted(others)})
    return {"required": list(names), "properties": fields}


class ScoreRequest(PairRequest, kw_only=True):
    """The request of /score: two fields of texts, under one of four pairs of names."""

    schema: ClassVar[dict[str, Any]] = {"anyOf": [_pair_schema(names) for names in PAIRED]}
    text_1: Texts | None = None
    text_2: Texts | None = None
    data_1: Texts | None = None
    data_2: Texts | None = None
    queries: Texts | None = None
    documents: Texts | None = None  # compared with queries
    items: Texts | None = None  # the same


class RerankText(Struct, kw_only=True, forbid_unknown_fields=True):
    """A document that is given as an object."""

    text: str


Documents = Annotated[list[str | RerankText], Meta(min_length=1, max_length=MAX_PROMPTS)]


class RerankRequest(PairRequest, kw_only=True):
    """The request of /rerank and /v1/rerank, in Jina's shape."""

    query: str
    documents: Documents
    top_n: Annotated[int, Meta(ge=0, le=INT32)] | None = None  # 0 or none: all
    return_documents: bool = True


class CohereRerankRequest(RerankRequest, kw_only=True):
    """The request of /v2/rerank, in Cohere's shape."""

    return_documents: bool = False


_OF_EITHER = {"passages": "documents", "top_k": "top_n", "inputs": "texts"}
Direction = Literal["left", "right", "Left", "Right"]


class AnyRerankRequest(RerankRequest, kw_only=True):
    """The request of /rerank, in Jina's shape with `documents` or in TEI's with `texts`."""

    rules: ClassVar[FieldRules] = replace(RULES, other_names=_OF_EITHER)
    schema: ClassVar[dict[str, Any]] = {
        "oneOf": [
            {
                "required": ["documents"],
                "properties": {
                    "documents": {"type": "array"},
                    "texts": {"type": "null"},
                    **dict.fromkeys(("raw_scores", "return_text", "truncate"), _OFF),
                },
            },
            {
                "required": ["texts"],
                "properties": {"documents": {"type": "null"}, "texts": {"type": "array"}},
            },
        ]
    }
    documents: Documents | None = None  # type: ignore[assignment]
    texts: Annotated[list[str], Meta(min_length=1, max_length=MAX_PROMPTS)] | None = None
    raw_scores: bool = False  # the model's own numbers instead of probabilities
    return_text: bool = False
    truncate: bool = False  # a text that is too long loses its end
    truncation_direction: Direction = "right"  # another is refused


class TeiEmbedRequest(PooledRequest, kw_only=True):
    """The request of /embed, in TEI's shape."""

    schema: ClassVar[dict[str, Any]] = prompts_schema("inputs")
    rules: ClassVar[FieldRules] = replace(
        RULES,
        with_lists=frozenset({"inputs"}),
        of_prompts={"inputs": no_text("inputs")},
        other_names={"input": "inputs", "texts": "inputs"},
    )
    inputs: TextInput
    normalize: bool = True
    truncate: bool = False  # a text that is too long loses its end
    truncation_direction: Direction = "right"  # another is refused
    prompt_name: Annotated[str, Meta(max_length=256)] | None = None  # put before each text
    dimensions: Annotated[int, Meta(ge=1, le=INT32)] | None = None


class PooledUsage(Struct, kw_only=True):
    """The tokens of all texts; none are generated."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int = 0


class PooledResponse(Struct, kw_only=True):
    """The fields that the responses of all these routes have, but those that rerank."""

    id: str
    created: int
    model: str
    data: list[Any]
    usage: PooledUsage
    object: str = "list"


class LateChunk(Struct, kw_only=True):
    """The place of a part: its first token or character, and the one after its last."""

    token_range: tuple[int, int]
    char_range: tuple[int, int] | None  # None: special tokens alone


class LateChunks(Struct, kw_only=True):
    """The parts of one text."""

    chunk_size: int
    input_tokens: int
    chunks: list[LateChunk]
    strategy: str = "fixed_tokens"


class EmbeddingData(Struct, kw_only=True):
    """The embedding of one input."""

    index: int
    embedding: list[Any] | str  # of numbers or, for tokens, of their lists; a string in base64
    object: str = "embedding"
    late_chunking: LateChunks | UnsetType = UNSET


class EmbeddingResponse(PooledResponse, kw_only=True):
    """The response of /v1/embeddings."""

    data: list[EmbeddingData]


class PoolingData(Struct, kw_only=True):
    """One input's vector, or the vectors of its tokens."""

    index: int
    data: list[Any] | str  # of numbers or, for tokens, of their lists; a string in base64
    object: str = "pooling"


class PoolingResponse(PooledResponse, kw_only=True):
    """The response of /pooling."""

    data: list[PoolingData]


class ClassifyData(Struct, kw_only=True):
    """The classes of one input."""

    index: int
    label: str | None  # the likeliest
    probs: list[float]
    num_classes: int


class ClassifyResponse(PooledResponse, kw_only=True):
    """The response of /classify."""

    data: list[ClassifyData]


class ScoreData(Struct, kw_only=True):
    """The score of one pair."""

    index: int
    score: float
    object: str = "score"


class ScoreResponse(PooledResponse, kw_only=True):
    """The response of /score."""

    data: list[ScoreData]


class RerankResult(Struct, kw_only=True):
    """One document's place among the others: they come with the most relevant first."""

    index: int
    relevance_score: float
    document: RerankText | UnsetType = UNSET


class RerankMeta(Struct, kw_only=True):
    """The part of the response that Cohere's clients read."""

    api_version: dict[str, str]
    billed_units: dict[str, int]
    tokens: dict[str, int]


class RerankResponse(Struct, kw_only=True):
    """The response of the routes that rerank."""

    id: str
    model: str
    results: list[RerankResult]
    usage: PooledUsage
    meta: RerankMeta | UnsetType = UNSET


class TeiRank(Struct, kw_only=True):
    """One text's place among the others, in TEI's shape."""

    index: int
    score: float
    text: str | UnsetType = UNSET


_RANK = {
    "type": "object",
    "required": ["index", "score"],
    "properties": {
        "index": {"type": "integer"},
        "score": {"type": "number"},
        "text": {"type": "string"},
    },
}


class AnyRerankResponse(RerankResponse, kw_only=True):
    """The response of /rerank: an object, or for TEI's requests a list."""

    schema: ClassVar[dict[str, Any]] = {"type": ["object", "array"], "items": _RANK}


class TeiEmbedResponse(Struct, kw_only=True):
    """The response of /embed, which is a list of vectors."""

    schema: ClassVar[dict[str, Any]] = {
        "type": "array",
        "items": {"type": "array", "items": {"type": "number"}},
    }
