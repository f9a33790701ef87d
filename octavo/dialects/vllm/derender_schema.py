"""The requests and responses of the derender routes, which make answers of given tokens."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from octavo.dialects.common.schema.chat import ChatChunk, ChatRequest, ChatResponse
from octavo.dialects.common.schema.completion import (
    CompletionChunk,
    CompletionRequest,
    CompletionResponse,
    PromptTokens,
)
from octavo.dialects.common.schema.sampling import INT32, Count, Name, TokenId
from octavo.observe.request_timing import RequestTiming
from octavo.serving.schema.prompts import MAX_PROMPT_ITEMS
from octavo.serving.schema.rules import FieldRules

_MOST = 1 << 15  # entries of a list, of which fewer are accepted: that error names both numbers
_ENTRIES = Meta(max_length=MAX_PROMPT_ITEMS)
Counts = Annotated[list[Count], _ENTRIES]
_RULES = FieldRules(open=frozenset({"chat_request", "completion_request"}))


class GivenLogprob(Struct, kw_only=True, gc=False, forbid_unknown_fields=True):
    """The log-probability of one token."""

    token_id: TokenId
    logprob: float
    rank: Annotated[int, Meta(ge=1, le=INT32)] | None = None


class GivenPosition(GivenLogprob, kw_only=True, gc=False):
    """The log-probabilities at one position: of its token, and of the likeliest ones."""

    top_logprobs: Annotated[list[GivenLogprob], _ENTRIES] = []


class GivenLogprobs(Struct, kw_only=True, forbid_unknown_fields=True):
    """The log-probabilities of an answer, or of a part of it."""

    content: Annotated[list[GivenPosition], _ENTRIES] | None = None


class GivenChoice(Struct, kw_only=True, forbid_unknown_fields=True):
    """The tokens of an answer, or the new ones, as /inference/v1/generate returns them."""

    index: Count
    token_ids: PromptTokens | None = None
    finish_reason: Literal["stop", "length", "abort", "error"] | None = None
    stop_reason: int | str | None = None  # the stop string or the stop token; null: an end of text
    logprobs: GivenLogprobs | None = None
    # Ignored: other facts about the tokens.
    routed_experts: Any = None
    sampling_mask: Any = None
    weight_versions: Any = None


class GivenUsage(Struct, kw_only=True):
    """The tokens that were counted where the answer was generated."""

    prompt_tokens: Count = 0
    completion_tokens: Count = 0


class SpeculationMetrics(Struct, kw_only=True):
    """The numbers of drafted and of accepted tokens of an answer."""

    mean_acceptance_length: float | None = None
    draft_acceptance_rate: float | None = None
    acceptance_histogram: Counts | None = None
    num_spec_steps: Count | None = None
    num_accepted_draft_tokens: Count | None = None
    num_draft_tokens: Count | None = None
    num_spec_tokens: Count | None = None
    per_step_accepted: Counts | None = None
    per_step_drafted: Counts | None = None


class GivenMetrics(RequestTiming, kw_only=True):
    """The measurements of the server that has generated the tokens, which the answer repeats."""

    speculative_decoding: SpeculationMetrics | None = None


class GivenResponse(Struct, kw_only=True, forbid_unknown_fields=True):
    """A response of /inference/v1/generate, or a chunk of its stream."""

    request_id: Name
    choices: Annotated[list[GivenChoice], Meta(max_length=_MOST)]
    output_mode: Literal["tokens"] = "tokens"
    prompt_token_ids: PromptTokens | None = None
    prompt_logprobs: Annotated[list[dict[str, Any] | None], _ENTRIES] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    metrics: GivenMetrics | None = None
    usage: GivenUsage | None = None
    # Ignored: those of the answer are made anew, or mean nothing to it.
    object: Any = None
    model: Any = None
    created: Any = None
    explain: Any = None
    warnings: Any = None
    mm_placeholders: Any = None
    ec_transfer_params: Any = None
    prompt_token_id_logprobs: Any = None


class StreamState(Struct, kw_only=True, forbid_unknown_fields=True):
    """The tokens so far, which the caller sends with each chunk: nothing is kept here."""

    output_token_ids: PromptTokens = []
    role_sent: bool = False  # in chats, where the first chunk has the role
    logprob_text_offset: Count = 0  # characters of the tokens with log-probabilities so far


class DerenderRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that both routes have; a stream sends one chunk after the other."""

    rules: ClassVar[FieldRules] = _RULES
    model: Annotated[str, Meta(max_length=512)] | None = None  # default: the served model
    stream: bool | None = None
    generate_chunk: GivenResponse | None = None  # with stream=true
    stream_state: StreamState | None = None  # of the chunk before this one


class DerenderChatRequest(DerenderRequest, kw_only=True):
    """The tokens of answers to a conversation, and the request that they answer."""

    generate_response: GivenResponse | None = None
    prompt_tokens: Count | None = None  # of the usage
    prompt_token_ids: PromptTokens | None = None  # what precedes the tokens
    chat_request: ChatRequest | None = None  # how the answer is read


class DerenderCompletionRequest(DerenderRequest, kw_only=True):
    """The tokens of continuations, those of each prompt in a response of its own."""

    generate_responses: Annotated[list[GivenResponse], Meta(max_length=_MOST)] | None = None
    prompt_tokens: Count | Annotated[list[Count], Meta(max_length=_MOST)] | None = None
    prompt_token_ids: (
        Annotated[list[TokenId | PromptTokens | None], Meta(max_length=MAX_PROMPT_ITEMS)] | None
    ) = None
    completion_request: CompletionRequest | None = None


class DerenderedChat(ChatResponse, kw_only=True):
    """A whole answer, with the fields that the other server has given for it."""

    metrics: GivenMetrics | UnsetType = UNSET


class DerenderedCompletion(CompletionResponse, kw_only=True):
    """Whole continuations, with the fields that the other server has given for them."""

    metrics: GivenMetrics | UnsetType = UNSET


class DerenderedChatChunk(Struct, kw_only=True):
    """A chunk of a stream, and the state to send with the next."""

    chunk: ChatChunk
    stream_state: StreamState


class DerenderedCompletionChunk(Struct, kw_only=True):
    """A chunk of a stream, and the state to send with the next."""

    chunk: CompletionChunk
    stream_state: StreamState
