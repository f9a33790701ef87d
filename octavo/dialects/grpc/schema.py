"""The requests of the gRPC interface as structs, which check what the messages do not express."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from octavo.dialects.common.schema.completion import CompletionRequest
from octavo.serving.schema.model_names import AskedModel
from octavo.serving.schema.rules import FieldRules

MAX_ABORTED = 4096


def _nothing(request: Any) -> bytes | None:
    return None


FORM = "messages"  # of streams


def _asked_model(request: RpcInput) -> AskedModel:
    """Return the name of the model; a request to generate has it among its parameters."""
    given = request.sampling_params if isinstance(request, RpcGenerateRequest) else request
    return AskedModel(() if given.model is None else (given.model,))


_RULES = FieldRules(
    asked_model=_asked_model,
    form=FORM,
    open=frozenset({"sampling_params"}),
    of_prompts={"prompt": _nothing, "packed_ids": lambda request: b""},
)


class RpcInput(Struct, kw_only=True, forbid_unknown_fields=True):
    """A text or token ids, which are not decoded from JSON but put in their place."""

    rules: ClassVar[FieldRules] = _RULES
    prompt: str | None = None
    packed_ids: bytes = b""  # four bytes each
    model: Annotated[str, Meta(max_length=512)] | None = None


class RpcGenerateRequest(RpcInput, kw_only=True):
    """The request of both calls that generate: the parameters are those of completions."""

    sampling_params: CompletionRequest
    is_stream: bool = False


class RpcEmbedRequest(RpcInput, kw_only=True):
    """A request for the vector of a text."""

    pooling: Literal["last", "mean", "cls"] = "last"
    normalize: bool = True


class RpcAbortRequest(Struct, kw_only=True, forbid_unknown_fields=True):
    """The ids of requests to end."""

    request_ids: Annotated[
        list[Annotated[str, Meta(max_length=256)]], Meta(min_length=1, max_length=MAX_ABORTED)
    ]
