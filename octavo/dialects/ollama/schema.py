"""The requests and the responses of /api/generate, /api/chat and the routes about models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from octavo.serving.schema.model_names import AskedModel
from octavo.serving.schema.prompts import Role
from octavo.serving.schema.rules import FieldRules, Unsupported

MAX_MESSAGES = 4096
MAX_TOOLS = 512
MAX_STOPS = 16
MAX_INPUTS = 4096
INT32 = 2**31 - 1

Name = Annotated[str, Meta(min_length=1, max_length=512)]
Stop = Annotated[str, Meta(min_length=1, max_length=256)]
ToolName = Annotated[str, Meta(max_length=128, pattern=r"^[a-zA-Z0-9_.-]+(?![\s\S])")]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Level = Literal["low", "medium", "high", "max"]


class OllamaOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters of sampling, and of other programs' memory."""

    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT32)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    repeat_last_n: Annotated[int, Meta(ge=-1, le=INT32)] | None = None  # -1: all; 0: no penalties
    repeat_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | Stop | None = None
    num_predict: Annotated[int, Meta(ge=-2, le=INT32)] | None = None  # below 0: as many as fit
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: Annotated[float, Meta(ge=0, le=100)] | None = None
    mirostat_eta: Annotated[float, Meta(ge=0, le=100)] | None = None
    tfs_z: float | None = None  # refused unless it asks for nothing
    # Ignored: penalties concern all tokens, and the server has its own settings.
    penalize_newline: Any = None
    num_ctx: Any = None
    num_keep: Any = None
    num_batch: Any = None
    num_gpu: Any = None
    main_gpu: Any = None
    low_vram: Any = None
    f16_kv: Any = None
    logits_all: Any = None
    vocab_only: Any = None
    use_mmap: Any = None
    use_mlock: Any = None
    embedding_only: Any = None
    num_thread: Any = None
    numa: Any = None


class OllamaFunction(Struct, kw_only=True):
    """A function that the model may call, and the JSON schema of its arguments."""

    name: ToolName
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OllamaTool(Struct, kw_only=True):
    """A tool; only functions are supported."""

    function: OllamaFunction
    type: Literal["function"] = "function"


class OllamaCalled(Struct, kw_only=True):
    """The function of a call."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    arguments: dict[str, Any] = {}
    index: int | UnsetType = UNSET


class OllamaCall(Struct, kw_only=True):
    """A call, in an answer or in an earlier one."""

    function: OllamaCalled
    id: Annotated[str, Meta(max_length=256)] | UnsetType = UNSET


class OllamaMessage(Struct, kw_only=True, forbid_unknown_fields=True):
    """One turn of the conversation."""

    role: Role
    content: str | None = None
    thinking: str | None = None
    tool_calls: Annotated[list[OllamaCall], Meta(max_length=MAX_TOOLS)] | None = None
    tool_name: Annotated[str, Meta(max_length=256)] | None = None  # whose result this is
    tool_call_id: Annotated[str, Meta(max_length=256)] | None = None
    images: Any = None  # refused unless there are none


def _empty(value: Any) -> bool:
    return value is None or value is False or value in ([], {}, "", 0)


def _nothing(request: Any) -> None:
    return None


_OF_PROMPTS: Mapping[str, Callable[[Any], Any]] = {
    "messages": lambda request: [OllamaMessage(role="user", content="")],
    "prompt": lambda request: "x",
    "system": _nothing,
}
# Fields of Ollama's that have no effect, where a request does not use them.
TAG = ":latest"  # which clients of this dialect add to names
IGNORED: Mapping[str, str] = {
    "keep_alive": "the model stays loaded as long as the server runs",
    "truncate": "a prompt that is too long is refused, with its length",
    "shift": "an answer ends where the context does",
    "width": "it concerns models of images",
    "height": "it concerns models of images",
    "steps": "it concerns models of images",
}


def without(table: Mapping[str, str], *names: str) -> Mapping[str, str]:
    """Return a table without the fields that a request has of its own."""
    return {name: why for name, why in table.items() if name not in names}


def asked_model(request: Any) -> AskedModel:
    """Return the name of the model, with and without the tag that clients of this dialect add."""
    name: str | None = request.model or getattr(request, "name", None)
    if name is None:
        return AskedModel()
    return AskedModel(tuple(dict.fromkeys((name, name.removesuffix(TAG)))))


RULES = FieldRules(
    asked_model=asked_model,
    open=frozenset({"tools", "format", "messages"}),
    unsupported={
        "images": Unsupported(_empty, "this model reads text; send it as text", "[]"),
        "suffix": Unsupported(_empty, "text between two others is not filled in here", '""'),
        "template": Unsupported(
            _empty,
            "templates of requests are not rendered; the server has the model's own, or that of "
            "--chat-template",
            '""',
        ),
        "context": Unsupported(
            _empty, "send the conversation to /api/chat, as text instead of tokens", "[]"
        ),
        "logprobs": Unsupported(_empty, "/v1/chat/completions has log-probabilities", "false"),
        "top_logprobs": Unsupported(_empty, "/v1/chat/completions has log-probabilities", "0"),
    },
    ignored=without(IGNORED, "keep_alive"),
    of_prompts=_OF_PROMPTS,
    other_names={"max_tokens": "options", "temperature": "options"},
)


class OllamaRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of both routes that generate."""

    rules: ClassVar[FieldRules] = RULES
    model: Name
    stream: bool | None = None  # default: true
    format: Literal["", "json"] | dict[str, Any] | None = None  # or the schema of the answer
    options: OllamaOptions | None = None
    think: bool | Level | None = None
    keep_alive: Any = None


class OllamaChatRequest(OllamaRequest, kw_only=True):
    """The request: a conversation and how to answer it; without messages, to load the model."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[OllamaTool], Meta(max_length=MAX_TOOLS)] | None = None


class OllamaGenerateRequest(OllamaRequest, kw_only=True):
    """The request: a prompt and how to continue it; without one, to load the model."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None  # the prompt is not written by the chat template


class OllamaEmbedRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The request for the vectors of texts."""

    rules: ClassVar[FieldRules] = FieldRules(
        asked_model=asked_model,
        ignored=without(IGNORED, "keep_alive", "truncate"),
        of_prompts={"input": lambda request: ""},
    )
    model: Name
    input: str | Annotated[list[str], Meta(max_length=MAX_INPUTS)]
    truncate: bool | None = None  # a text that is too long is cut (the default), or refused
    dimensions: Annotated[int, Meta(ge=1, le=INT32)] | None = None
    options: Annotated[dict[str, Any], Meta(max_length=64)] | None = None  # no effect
    keep_alive: Any = None


class OllamaEmbeddingRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The older request, for the vector of one text."""

    rules: ClassVar[FieldRules] = FieldRules(
        asked_model=asked_model, ignored=RULES.ignored, of_prompts={"prompt": lambda request: ""}
    )
    model: Name
    prompt: str
    options: Annotated[dict[str, Any], Meta(max_length=64)] | None = None  # no effect
    keep_alive: Any = None


class OllamaVectors(Struct, kw_only=True):
    """The vectors of texts, in their order."""

    model: str
    embeddings: list[list[float]]
    total_duration: int  # nanoseconds
    load_duration: int
    prompt_eval_count: int


class OllamaVector(Struct, kw_only=True):
    """The vector of one text."""

    embedding: list[float]


class OllamaAnswerMessage(Struct, kw_only=True):
    """The new part of an answer, or all of it."""

    role: str = "assistant"
    content: str = ""
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaCall] | UnsetType = UNSET


class OllamaAnswer(Struct, kw_only=True):
    """A line of an answer, or all of it; the last line has the numbers."""

    model: str
    created_at: str
    message: OllamaAnswerMessage | UnsetType = UNSET  # of /api/chat
    response: str | UnsetType = UNSET  # of /api/generate
    thinking: str | UnsetType = UNSET  # likewise
    done: bool = False
    done_reason: str | UnsetType = UNSET
    total_duration: int | UnsetType = UNSET  # nanoseconds
    load_duration: int | UnsetType = UNSET
    prompt_eval_count: int | UnsetType = UNSET
    prompt_eval_duration: int | UnsetType = UNSET
    eval_count: int | UnsetType = UNSET
    eval_duration: int | UnsetType = UNSET
