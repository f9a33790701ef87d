"""Stored tensors as data: how their axes relate to those of the logical matrix [out, in].

A format that packs eight 4-bit weights along the input into one number and keeps a scale for each
group of 128 declares

    TensorDecl("qweight", (Axis("out"), Axis("in", 8)))
    TensorDecl("scales",  (Axis("out"), Axis("in", 128)))

Sharding and stacking, which are ranges on the logical axes, follow by division.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a stored tensor: its logical axis, and how many elements share an index."""

    logical: Literal["out", "in"]
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class TensorDecl:
    """One stored tensor and its axes."""

    name: str
    axes: tuple[Axis, ...]


# The tensors of a projection that is stored as it is.
PLAIN = {
    "weight": TensorDecl("weight", (Axis("out"), Axis("in"))),
    "bias": TensorDecl("bias", (Axis("out"),)),
}
