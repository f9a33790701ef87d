"""Published models in their shapes, with tensors that have no memory (torch's meta device)."""

from __future__ import annotations

from typing import Any

import torch
from msgspec import structs
from torch import Tensor

from octavo.backends.base import KVLayout
from octavo.backends.cuda.products import ScaledMatrix
from octavo.backends.torch import eight_bits
from octavo.backends.torch.weights import TorchExperts, TorchMatrix
from octavo.layers import GateUpLinear, MatrixStack, Model
from octavo.models.config_reader import Config
from octavo.models.kv_layout import place_layers
from octavo.models.needs import find_needs
from octavo.models.registry import family_of
from tests.models.published_shapes import PUBLISHED

META = torch.device("meta")
_LAYERS = 2  # of each model: the first of some mixtures has no experts


def published(name: str, dtype: torch.dtype, *, has_codes: bool = False) -> tuple[Model, KVLayout]:
    """Declare the first layers of a published model, and give them weights and places.

    With codes, projections have weights of FP8 that a card multiplies, but for those of experts.
    """
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
        elif has_codes and need.is_matrix and need.matrix is not None and len(values) > 1:
            made = _of_codes(values, isinstance(need.module, GateUpLinear))
        elif need.is_matrix:
            made = TorchMatrix(values, isinstance(need.module, GateUpLinear))
        setattr(need.module, need.tensor, made)
    if model.tied and model.head is not None:
        model.head.weight = model.embed.weight
    return model, place_layers(model)


def _of_codes(values: Tensor, gated: bool) -> ScaledMatrix:
    """Return a matrix of the same shape whose rows and outputs have scales."""
    codes = values.to(eight_bits.CODES)
    scales = torch.empty(len(values), 1, device=META)
    return ScaledMatrix(codes, gated, "fp8", scales, values.shape[1])
