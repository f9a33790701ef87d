"""The requests and the answers of TGI's routes."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from octavo.serving.schema.model_names import AdapterName, AskedModel
from octavo.serving.schema.rules import FieldRules

MAX_STOPS = 16
INT32 = 2**31 - 1

Stop = Annotated[str, Meta(min_length=1, max_length=256)]


class TgiGrammar(Struct, kw_only=True, forbid_unknown_fields=True):
    """The shape of the answer: a JSON schema, with or without a name, or a regular expression."""

    type: Literal["json", "json_schema", "regex"]
    value: Any


class TgiParameters(Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters of sampling, and what the answer contains besides text."""

    max_new_tokens: Annotated[int, Meta(ge=1, le=INT32)] | None = None
    do_sample: bool | None = None  # false, and nothing that only draws need: the likeliest tokens
    temperature: Annotated[float, Meta(gt=0, le=100)] | None = None
    top_k: Annotated[int, Meta(ge=1, le=INT32)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=100)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    stop: Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    grammar: TgiGrammar | None = None
    truncate: Annotated[int, Meta(ge=1, le=INT32)] | None = None  # the input to its last tokens
    return_full_text: bool | None = None  # the text begins with the input
    details: bool | None = None
    decoder_input_details: bool | None = None  # the input's tokens among the details
    top_n_tokens: Annotated[int, Meta(ge=0, le=INT32)] | None = None
    adapter_id: AdapterName | None = None
    typical_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    # Refused unless they ask for nothing.
    best_of: int | None = None
    watermark: bool | None = None


_IGNORED = {
    "options": "the model stays loaded, and no answer is kept",
    "cache_prompt": "prefixes are found by their content",
}


def _asked_model(request: TgiRequest) -> AskedModel:
    """Return the names of the model and of the adapter, which is among the parameters."""
    adapter = None if request.parameters is None else request.parameters.adapter_id
    return AskedModel(
        names=() if request.model is None else (request.model,),
        adapter=adapter or "",
        adapter_param="parameters.adapter_id",
    )


class TgiRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """A text to continue."""

    rules: ClassVar[FieldRules] = FieldRules(
        open=frozenset({"parameters"}),
        ignored=_IGNORED,
        of_prompts={"inputs": lambda request: ""},
        other_names={"text": "inputs", "prompt": "inputs", "sampling_params": "parameters"},
        other_routes={"messages": "/v1/chat/completions"},
        asked_model=_asked_model,
    )
    inputs: str
    parameters: TgiParameters | None = None
    stream: bool | None = None
    model: Annotated[str, Meta(max_length=512)] | None = None


class TgiGenerateRequest(TgiRequest, kw_only=True):
    """The request of /generate, whose answer is one object."""


class TgiStreamRequest(TgiRequest, kw_only=True):
    """The request of /generate_stream, whose answer is always a stream."""


class TgiToken(Struct, kw_only=True):
    """One token, with the text that it adds to those before it."""

    id: int
    text: str
    logprob: float
    special: bool


class TgiPrefillToken(Struct, kw_only=True):
    """One token of the input."""

    id: int
    text: str
    logprob: float | None  # null for the first


class TgiDetails(Struct, kw_only=True):
    """The end of an answer, and its tokens."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    prefill: list[TgiPrefillToken]
    tokens: list[TgiToken]
    top_tokens: list[list[TgiToken]] | UnsetType = UNSET


class TgiEnd(Struct, kw_only=True):
    """The end of a streamed answer."""

    finish_reason: str
    generated_tokens: int
    seed: int | None
    input_length: int


class TgiAnswer(Struct, kw_only=True):
    """The whole answer, from /generate."""

    generated_text: str
    details: TgiDetails | UnsetType = UNSET


class TgiListedAnswer(TgiAnswer, kw_only=True):
    """The whole answer, from /: a list of one."""

    schema: ClassVar[dict[str, Any]] = {
        "type": "array",
        "items": {"$ref": "#/components/schemas/TgiAnswer"},
    }


class TgiEvent(Struct, kw_only=True):
    """An event of a stream: one token; the last has the whole text too."""

    index: int  # of the token, from 1 on
    token: TgiToken | None  # null if an operator ends an answer that has none
    generated_text: str | None = None
    details: TgiEnd | None = None
    top_tokens: list[TgiToken] | UnsetType = UNSET
