"""The requests and the answers of llama.cpp's own routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import UNSET, Meta, Struct, UnsetType

from octavo.dialects.common.schema.samplers import SamplerFields
from octavo.dialects.common.timings import LlamaTimings, PromptProgress
from octavo.serving.schema.model_names import AdapterScales
from octavo.serving.schema.prompts import MAX_PROMPT_ITEMS
from octavo.serving.schema.rules import FieldRules, Unsupported

MAX_BIASES = 1024
MAX_EXTRA = 512  # texts around an infilled one
MAX_FIELDS = 64  # that an answer is reduced to
MAX_N = 128
MAX_STOPS = 16
INT32 = 2**31 - 1

TokenId = Annotated[int, Meta(ge=0, le=INT32)]
Mixed = Annotated[list[str | TokenId], Meta(max_length=MAX_PROMPT_ITEMS)]
Stop = Annotated[str, Meta(max_length=256)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Share = Annotated[float, Meta(ge=0, le=1)]


class PromptObject(Struct, kw_only=True, forbid_unknown_fields=True):
    """A prompt as an object, beside which media may stand."""

    prompt_string: str
    multimodal_data: Any = None  # refused unless there are none


# One prompt (a text, token ids, or a list of both), or several.
Prompt = (
    str
    | PromptObject
    | Annotated[list[str | TokenId | PromptObject | Mixed], Meta(max_length=MAX_PROMPT_ITEMS)]
)


def is_one(prompt: Any) -> bool:
    """Return whether a field holds one prompt: a list of texts alone, or with lists, is several."""
    if not isinstance(prompt, list):
        return True
    return any(isinstance(each, int) for each in prompt)


def _without_texts(request: Any) -> Any:
    """Return as many empty prompts as there were."""
    return "" if is_one(request.prompt) else [""] * len(request.prompt)


def _asks_nothing(*values: Any) -> Any:
    return lambda value: value is None or value is False or value in values


def _off(value: Any) -> bool:
    return value is None or value in (False, 0, [], {}, "")


UNSUPPORTED: Mapping[str, Unsupported] = {
    "adaptive_target": Unsupported(
        _asks_nothing(-1), "this sampler is not supported; send -1", "-1"
    ),
    "n_indent": Unsupported(_off, "the indentation of lines is not enforced; send 0", "0"),
    "post_sampling_probs": Unsupported(
        _off, "probabilities are those of the model; leave it out", "false"
    ),
    "grammar_lazy": Unsupported(
        _off, "a grammar holds from the first token; leave it out", "false"
    ),
    "grammar_triggers": Unsupported(_off, "a grammar holds from the first token", "[]"),
    "image_data": Unsupported(_off, "this model reads text; leave it out", "[]"),
    "multimodal_data": Unsupported(_off, "this model reads text; leave it out", "[]"),
}
_CACHE = "prefixes are found by their content, and kept until their memory is needed"
_SETTING = "it is a setting of the server"
IGNORED: Mapping[str, str] = {
    **dict.fromkeys(("cache_prompt", "n_cache_reuse", "n_keep", "n_discard"), _CACHE),
    **dict.fromkeys(("id_slot", "slot_id"), "requests are not bound to a slot"),
    **dict.fromkeys(("t_max_predict_ms", "t_max_prompt_ms"), "n_predict ends an answer"),
    "penalize_nl": "penalties concern all tokens",
    "adaptive_decay": "it has an effect with adaptive_target alone",
    "verbose": "answers of these routes have all there is",
    **dict.fromkeys(("backend_sampling", "sse_ping_interval"), _SETTING),
    **dict.fromkeys(
        (
            *("speculative.n_max", "speculative.n_min", "speculative.p_min", "speculative.type"),
            "speculative.types",
        ),
        _SETTING,
    ),
    "stream_options": "the last event of a stream has the numbers",
    "preserved_tokens": "they concern tool calls, which these routes do not have",
    **dict.fromkeys(("chat_format", "reasoning_format", "parse_tool_calls"), "answers are text"),
}
RULES = FieldRules(
    open=frozenset({"json_schema"}),
    with_lists=frozenset({"prompt"}),
    unsupported=UNSUPPORTED,
    ignored=IGNORED,
    of_prompts={
        "prompt": _without_texts,
        "input_prefix": lambda request: "",
        "input_suffix": lambda request: "",
        "input_extra": lambda request: None,
    },
    other_names={"repetition_penalty": "repeat_penalty", "inputs": "prompt", "content": "prompt"},
    other_routes={"messages": "/v1/chat/completions"},
)


class LlamaSampling(SamplerFields, kw_only=True, forbid_unknown_fields=True):
    """The fields that /completion and /infill have in common."""

    rules: ClassVar[FieldRules] = RULES
    model: Annotated[str, Meta(max_length=512)] | None = None
    lora: AdapterScales | None = None  # one of the adapters, by its number, and its scale
    stream: bool | None = None
    n_predict: Annotated[int, Meta(ge=-2, le=INT32)] | None = None  # below 0: as many as fit
    max_tokens: Annotated[int, Meta(ge=-2, le=INT32)] | None = None  # the same
    max_completion_tokens: Annotated[int, Meta(ge=-2, le=INT32)] | None = None
    n_cmpl: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    temperature: Annotated[float, Meta(le=100)] | None = None  # below 0: 0
    top_k: Annotated[int, Meta(ge=-1, le=INT32)] | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    repeat_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    typical_p: Share | None = None
    samplers: Annotated[list[str], Meta(max_length=64)] | str | None = None
    stop: Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | Stop | None = None
    ignore_eos: bool | None = None
    # Pairs of a token and a number, or an object of them; false instead of a number: never.
    logit_bias: (
        Annotated[list[Annotated[list[Any], Meta(max_length=2)]], Meta(max_length=MAX_BIASES)]
        | Annotated[dict[str, Any], Meta(max_length=MAX_BIASES)]
        | None
    ) = None
    n_probs: Annotated[int, Meta(ge=0, le=INT32)] | None = None
    grammar: str | None = None
    json_schema: Any = None
    return_tokens: bool | None = None
    timings_per_token: bool | None = None  # in each event of a stream
    return_progress: bool | None = None  # a stream has an event for each part of the prompt
    response_fields: Annotated[list[str], Meta(max_length=MAX_FIELDS)] | None = None


class LlamaCompletionRequest(LlamaSampling, kw_only=True):
    """The request of /completion: one prompt or several to continue."""

    prompt: Prompt


class ExtraText(Struct, kw_only=True, forbid_unknown_fields=True):
    """A text from elsewhere that precedes what is infilled, such as another file."""

    text: str
    filename: str | None = None


class InfillRequest(LlamaSampling, kw_only=True):
    """The request of /infill: the text before and after what is written."""

    input_prefix: str
    input_suffix: str
    prompt: str = ""  # the beginning of what is written
    input_extra: Annotated[list[ExtraText], Meta(max_length=MAX_EXTRA)] | None = None


class LlamaAnswer(Struct, kw_only=True):
    """An answer as a whole, or the last event of a stream."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int = -1
    stop: bool = True
    model: str
    tokens_predicted: int
    tokens_evaluated: int
    generation_settings: dict[str, Any]
    prompt: str
    has_new_line: bool
    truncated: bool
    stop_type: str
    stopping_word: str
    tokens_cached: int
    timings: LlamaTimings
    completion_probabilities: list[dict[str, Any]] | UnsetType = UNSET


class LlamaChunk(Struct, kw_only=True):
    """An event of a stream before the last."""

    index: int
    content: str
    tokens: list[int]
    id_slot: int = -1
    stop: bool = False
    tokens_predicted: int
    tokens_evaluated: int
    timings: LlamaTimings | UnsetType = UNSET
    prompt_progress: PromptProgress | UnsetType = UNSET
    completion_probabilities: list[dict[str, Any]] | UnsetType = UNSET


class TemplateResponse(Struct, kw_only=True):
    """The text that the chat template makes of a conversation."""

    prompt: str
