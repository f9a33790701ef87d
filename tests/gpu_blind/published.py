"""Published models in their shapes, with tensors that have no memory (torch's meta device)."""

from __future__ import annotations

from typing import Any

import torch
from msgspec import structs

from octavo.backends.base import KVLayout
from octavo.backends.torch.weights import TorchExperts, TorchMatrix
from octavo.layers import GateUpLinear, MatrixStack, Model
from octavo.models.config_reader import Config
from octavo.models.kv_layout import place_layers
from octavo.models.needs import find_needs
from octavo.models.registry import family_of
from tests.models.published_shapes import PUBLISHED

META = torch.device("meta")
_LAYERS = 2  # of each model: the first of some mixtures has no experts


def published(name: str, dtype: torch.dtype) -> tuple[Model, KVLayout]:
    """Declare the first layers of a published model, and give them weights and places."""
    config = PUBLISHED[name][0]
    family = family_of(config["architectures"][0])
    spec = family.read(Config(dict(config)))
    fields = {field: getattr(spec, field)[:_LAYERS] for field in ("ropes", "windows", "experts")}
    model = family(structs.replace(spec, layers=_LAYERS, **fields))
    for need in find_needs(model, ()):
        values = torch.empty(need.declared.shape, dtype=dtype, device=META)
        made: Any = values
        if isinstance(need.module, MatrixStack) and need.is_matrix:
            made = TorchExperts(values)
        elif need.is_matrix:
            made = TorchMatrix(values, isinstance(need.module, GateUpLinear))
        setattr(need.module, need.tensor, made)
    if model.tied and model.head is not None:
        model.head.weight = model.embed.weight
    return model, place_layers(model)
