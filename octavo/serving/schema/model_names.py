"""What a request says about the model and the adapter that it wants, in the terms of no dialect."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from octavo.options.named_adapters import MAX_SCALE

MOST_SCALES = 64  # in a request


class AdapterScale(Struct, kw_only=True, forbid_unknown_fields=True):
    """The scale of one adapter, as llama.cpp's requests have it."""

    id: Annotated[int, Meta(ge=0, le=2**31 - 1)]
    scale: Annotated[float, Meta(ge=-MAX_SCALE, le=MAX_SCALE)]


AdapterScales = Annotated[list[AdapterScale], Meta(max_length=MOST_SCALES)]
AdapterName = Annotated[str, Meta(max_length=512)]


class AskedModel(Struct, frozen=True):
    """The names in a request; empty ones stand for the model that is served."""

    names: tuple[str, ...] = ()  # of a model or an adapter; the first that is known counts
    param: str = "model"  # the field that has them
    adapter: str = ""  # of an adapter, beside the model's name
    adapter_param: str = "lora_path"
    # The scales of adapters, by their numbers; None: as the operator has set them.
    scales: tuple[tuple[int, float], ...] | None = None


def asked_model(request: Any) -> AskedModel:
    """Return what most requests say: in `model`, in SGLang's `lora_path`, in llama.cpp's `lora`."""
    name: str | None = getattr(request, "model", None)
    adapter: str | None = getattr(request, "lora_path", None)
    given: list[AdapterScale] | None = getattr(request, "lora", None)
    return AskedModel(
        names=() if name is None else (name,),
        adapter=adapter or "",
        scales=None if given is None else tuple([(each.id, each.scale) for each in given]),
    )
