"""The fields that completions and chat have in common, with their bounds."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from octavo.core.config import MAX_PRIORITY
from octavo.core.sampling_params import MAX_BIAS, MAX_EXTRA_ARGS, MAX_LOGPROB_IDS
from octavo.core.stopping.repetition import MAX_COMPARED, MAX_PATTERN_SIZE
from octavo.dialects.common.schema.samplers import Order
from octavo.dialects.common.schema.shapes import ShapeFields
from octavo.dialects.common.schema.unsupported import RULES
from octavo.serving.schema.model_names import AdapterName, AdapterScales
from octavo.serving.schema.rules import FieldRules

MAX_N = 128
MAX_PENALTY = 10  # of length, to whose power it is taken
MAX_STOPS = 16
MAX_STOP_CHARACTERS = 256
MAX_BIASES = 1024
MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 4096  # of all together: each prompt's request holds their tokens
MAX_TOKEN_LIST = 65_536
MAX_DEADLINE_MS = 86_400_000
INT32 = 2**31 - 1
_NUMBER = {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS}

TokenId = Annotated[int, Meta(ge=0, le=INT32)]
Count = Annotated[int, Meta(ge=0, le=INT32)]
# Each is checked with its token, so that all that is wrong is named at once.
Bias = Annotated[Any, Meta(extra_json_schema=_NUMBER)]
NamedIds = Annotated[list[TokenId], Meta(max_length=MAX_LOGPROB_IDS)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Name = Annotated[str, Meta(max_length=256)]
ExtraArg = str | Annotated[int, Meta(ge=-(2**53), le=2**53)] | float | bool
ExtraArgs = Annotated[dict[str, ExtraArg | list[ExtraArg]], Meta(max_length=MAX_EXTRA_ARGS)]


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    """The contents of a stream besides text."""

    include_usage: bool | None = None  # one more chunk with the usage, at the end
    continuous_usage_stats: bool | None = None  # the usage so far, in every chunk
    include_obfuscation: bool | None = None  # ignored: chunks are not padded


class RepetitionDetection(Struct, kw_only=True, forbid_unknown_fields=True):
    """The repetition that ends an answer: a pattern of tokens, so many times in a row."""

    max_pattern_size: Annotated[int, Meta(ge=0, le=MAX_PATTERN_SIZE)] = 0  # 0: none is looked for
    min_pattern_size: Annotated[int, Meta(ge=0, le=MAX_PATTERN_SIZE)] = 0
    min_count: Annotated[int, Meta(ge=0, le=MAX_COMPARED)] = 0  # at least 2


class CommonRequest(ShapeFields, kw_only=True, forbid_unknown_fields=True):
    """The common fields: sampling, stopping, contents of the response, scheduling."""

    rules: ClassVar[FieldRules] = RULES
    model: Annotated[str, Meta(max_length=512)] | None = None  # default: the served model
    lora_path: AdapterName | None = None  # an adapter's name, beside the model's
    lora: AdapterScales | None = None  # an adapter by its number in /lora-adapters, and its scale
    max_tokens: Count | None = None
    min_tokens: Count = 0
    thinking_token_budget: Annotated[int, Meta(ge=-1, le=INT32)] | None = None  # -1: none
    repetition_detection: RepetitionDetection | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT32)] | None = None
    min_p: Share | None = None
    samplers: Order | None = None  # those that are used, in their order; default: all
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    use_beam_search: bool | None = None  # the `n` likeliest answers, instead of drawn ones
    length_penalty: Annotated[float, Meta(ge=-MAX_PENALTY, le=MAX_PENALTY)] | None = None
    early_stopping: bool | None = None  # end the search once `n` beams have ended
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOPS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=MAX_BIASES)] | None = None
    allowed_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_TOKEN_LIST)] | None = None
    bad_words: Annotated[list[StopString], Meta(max_length=MAX_BAD_WORDS)] | None = None
    logprob_token_ids: NamedIds | None = None  # instead of the likeliest
    prompt_logprobs: Annotated[int, Meta(ge=-1, le=INT32)] | None = None
    speculation: bool | None = None  # false: no drafts are verified, which changes no text
    vllm_xargs: ExtraArgs | None = None  # for the processors of --logits-processors
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_tokens_as_token_ids: bool | None = None  # in logprobs, as "token_id:N" instead of text
    return_token_ids: bool | None = None
    return_prompt_text: bool | None = None  # the prompt as the template has made it
    return_token_offsets: bool | None = None  # of the prompt; the render routes alone have them
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=INT32)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    priority: Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] = 0
    request_id: Name | None = None  # the request's, if no x-request-id header names it
    deadline_ms: Annotated[int, Meta(ge=1, le=MAX_DEADLINE_MS)] | None = None
    explain: bool | None = None  # add to the response where the time went
