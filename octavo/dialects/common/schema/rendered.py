"""A request as token ids with its sampling parameters: what the render routes return."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from octavo.core.sampling_params import MAX_PREDICTION_TOKENS
from octavo.dialects.common.parse_context import ParseContext
from octavo.dialects.common.schema.samplers import Order, SamplerFields
from octavo.dialects.common.schema.sampling import (
    INT32,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_N,
    MAX_STOPS,
    MAX_TOKEN_LIST,
    Bias,
    Count,
    ExtraArgs,
    NamedIds,
    Penalty,
    RepetitionDetection,
    Share,
    StopString,
    StreamOptions,
    TokenId,
)
from octavo.dialects.common.schema.shapes import StructuredOutputs

PredictedIds = Annotated[list[TokenId], Meta(max_length=MAX_PREDICTION_TOKENS)]
Logprobs = Annotated[int, Meta(ge=-1, le=INT32)]


class TokenSampling(SamplerFields, kw_only=True, forbid_unknown_fields=True):
    """The sampling parameters beside token ids; names and defaults are those of SamplingParams."""

    n: Annotated[int, Meta(ge=1, le=MAX_N)] = 1
    max_tokens: Count | None = None  # default: as many as fit, as in chats
    min_tokens: Count = 0
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=INT32)] = 0
    min_p: Share = 0.0
    samplers: Order | None = None
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
    speculation: bool = True  # false: no drafts are verified, which changes no text
    prediction: PredictedIds | None = None  # token ids that the answer may follow


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
