"""The requests and responses of vLLM's own routes."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from octavo.core.config import MAX_PRIORITY
from octavo.core.sampling_params import MAX_LOGPROB_IDS
from octavo.dialects.openai.schema.chat import (
    MAX_MESSAGES,
    AnswerMessage,
    ChatRequest,
    Message,
)
from octavo.dialects.openai.schema.completion import PromptTokens
from octavo.dialects.openai.schema.sampling import (
    INT32,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_DEADLINE_MS,
    MAX_N,
    MAX_STOPS,
    MAX_TOKEN_LIST,
    Bias,
    Count,
    ExtraArgs,
    Name,
    NamedIds,
    Penalty,
    RepetitionDetection,
    Share,
    StopString,
    StreamOptions,
    TokenId,
)
from octavo.dialects.openai.schema.shapes import StructuredOutputs
from octavo.dialects.openai.schema.unsupported import CHAT_RULES, OF_BEAMS, RULES
from octavo.dialects.openai.schema.usage import Usage
from octavo.dialects.vllm.parse_context import FIELD, ParseContext, without_variables
from octavo.observe.request_timing import RequestTiming
from octavo.serving.schema.prompts import MAX_PROMPTS
from octavo.serving.schema.rules import FieldRules, Unsupported

MAX_CONVERSATIONS = 256
Logprobs = Annotated[int, Meta(ge=-1, le=INT32)]
Messages = Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]


class TokenSampling(Struct, kw_only=True, forbid_unknown_fields=True):
    """The sampling parameters beside token ids; names and defaults are those of SamplingParams."""

    n: Annotated[int, Meta(ge=1, le=MAX_N)] = 1
    max_tokens: Count | None = None  # default: as many as fit, as in chats
    min_tokens: Count = 0
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=INT32)] = 0
    min_p: Share = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] = 1.0
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=MAX_BIASES)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_TOKEN_LIST)] | None = None
    bad_words: Annotated[list[StopString], Meta(max_length=MAX_BAD_WORDS)] | None = None
    logprobs: Logprobs | None = None
    logprob_token_ids: NamedIds | None = None
    prompt_logprobs: Logprobs | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    detokenize: bool | None = None  # false: no stop strings, and no text in the answer
    structured_outputs: StructuredOutputs | None = None
    repetition_detection: RepetitionDetection | None = None
    extra_args: ExtraArgs | None = None  # for the processors of --logits-processors


def _off(value: Any) -> bool:
    return value is False or value in (None, [], {})


_MEDIA = Unsupported(_off, "prompts have no media; leave it out", "null")
_OF_TOKENS = {
    **RULES.unsupported,
    **OF_BEAMS,
    "features": _MEDIA,
    "content_parts": _MEDIA,
    "vllm_xargs": Unsupported(_off, "write it as sampling_params.extra_args", "{}"),
}


class TokensRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A request whose prompt and answer are token ids, as the render routes return it."""

    rules: ClassVar[FieldRules] = replace(
        RULES,
        open=frozenset({"sampling_params", FIELD}),
        unsupported=_OF_TOKENS,
        of_prompts={
            "token_ids": lambda request: [],
            FIELD: lambda request: without_variables(request.parse_context),
        },
        ignored={
            **RULES.ignored,
            "prompt_text": "the tokens are what is continued",
            "token_offsets": "no part of an answer is made of them",
            "assistant_tokens_mask": "no part of an answer is made of it",
            "reasoning_parser_kwargs": "the end of the prompt shows what its template was given",
        },
    )
    token_ids: PromptTokens
    sampling_params: TokenSampling
    model: Annotated[str, Meta(max_length=512)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    request_id: Name | None = None  # the request's, if no x-request-id header names it
    # text: the answer's text too; derender: its message, with reasoning and calls apart.
    output_mode: Literal["tokens", "text", "derender"] | None = None
    parse_context: ParseContext | None = None  # of the conversation, as its render has it
    # true: a shape holds from the first token; else behind the reasoning, as in chats.
    reasoning_ended: bool | None = None
    return_token_ids: bool | None = None  # the prompt's, in the answer


class IdLogprob(Struct, kw_only=True, gc=False):
    """A token's log-probability, and its place among all; beside a text, the token's text."""

    logprob: float
    token_id: int | UnsetType = UNSET
    rank: int | UnsetType | None = UNSET  # of the likeliest: 1
    token: str | UnsetType = UNSET
    bytes: list[int] | UnsetType = UNSET


class IdPosition(IdLogprob, kw_only=True, gc=False):
    """The log-probabilities at a position: the generated token's, and the likeliest ones."""

    top_logprobs: list[IdLogprob]


class IdLogprobs(Struct, kw_only=True):
    """The log-probabilities of an answer: by token id, or beside a text in the form of chats."""

    content: list[IdPosition]


class TokensChoice(Struct, kw_only=True):
    """One of the `n` answers."""

    index: int
    token_ids: list[int] | None  # null: they would show the reasoning that is left out
    text: str | UnsetType = UNSET
    message: AnswerMessage | UnsetType = UNSET
    logprobs: IdLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None


class TokensResponse(Struct, kw_only=True):
    """The response of a request without a stream."""

    request_id: str
    choices: list[TokensChoice]
    usage: Usage
    model: str
    created: int
    object: str = "token_generation"
    output_mode: str = "tokens"
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: list[dict[str, Any] | None] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    metrics: RequestTiming | UnsetType = UNSET


class TokensChunk(Struct, kw_only=True):
    """The payload of one event of a stream."""

    request_id: str
    choices: list[TokensChoice]
    object: str = "token_generation.chunk"
    output_mode: str = "tokens"
    prompt_token_ids: list[int] | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    metrics: RequestTiming | UnsetType = UNSET
    explain: dict[str, Any] | UnsetType = UNSET
    warnings: list[str] | UnsetType = UNSET


class RenderedRequest(Struct, kw_only=True):
    """A request as the engine would get it: what /inference/v1/generate accepts."""

    request_id: str
    token_ids: list[int]
    sampling_params: TokenSampling
    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    cache_salt: str | None = None
    priority: int = 0
    prompt_text: str | None = None
    token_offsets: list[tuple[int, int]] | None = None  # in the text that was tokenised
    parse_context: ParseContext | None = None  # of a conversation: how its answer is read
    reasoning_ended: bool | None = None  # before the first token; null: the model has none
    assistant_tokens_mask: list[int] | None = None  # 1 for a token of an assistant's text
    warnings: list[str] | UnsetType = UNSET


def _no_item(request: Any) -> list[str]:
    return [""] * len(request.items)


Labels = Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_LOGPROB_IDS)]


class ScoringRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A query and items, scored by the probability of a token behind both."""

    rules: ClassVar[FieldRules] = FieldRules(
        with_lists=frozenset({"query", "items"}),
        ignored={
            "request_id": "the x-request-id header names a request",
            "user": "the API key identifies the user",
        },
        of_prompts={"query": lambda request: "", "items": _no_item},
        other_names={"documents": "items", "label_tokens": "label_token_ids"},
        other_routes={"queries": "/score", "text_1": "/score"},
    )
    query: str | PromptTokens
    items: Annotated[list[str | PromptTokens], Meta(min_length=1, max_length=MAX_PROMPTS)]
    label_token_ids: Labels
    model: Annotated[str, Meta(max_length=512)] | None = None
    apply_softmax: bool = True  # over the labels; else over the whole vocabulary
    item_first: bool = False  # the prompt is the item and then the query
    add_special_tokens: bool = True  # around the query, if it is a text
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    deadline_ms: Annotated[int, Meta(ge=1, le=MAX_DEADLINE_MS)] | None = None


def _last_messages(request: Any) -> Any:
    """Return the last message of each conversation, without its text."""
    return [[Message(role=each[-1].role, content="")] for each in request.messages]


_BATCH_RULES = replace(CHAT_RULES, of_prompts={**CHAT_RULES.of_prompts, "messages": _last_messages})


class BatchChatRequest(ChatRequest, kw_only=True):
    """A request with several conversations, which are answered alike."""

    rules: ClassVar[FieldRules] = _BATCH_RULES
    schema: ClassVar[dict[str, Any]] = {
        "allOf": [{"properties": {"stream": {"enum": [None, False]}, "echo": {"enum": [False]}}}]
    }
    messages: Annotated[  # type: ignore[assignment]
        list[Messages], Meta(min_length=1, max_length=MAX_CONVERSATIONS)
    ]
