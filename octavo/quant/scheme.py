"""A storage scheme as data: which tensors stand for a matrix, and how their axes relate to it.

The logical matrix is [out, in]. A scheme that packs eight 4-bit weights along the input into one
number and keeps a scale for each group of 128 declares

    TensorDecl("qweight", (Axis("out"), Axis("in", 8)))
    TensorDecl("scales",  (Axis("out"), Axis("in", 128)))

and sharding and stacking, which are ranges on the logical axes, follow by division.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a stored tensor: which logical axis, and how many elements share an index."""

    logical: Literal["out", "in"]
    divisor: int = 1


@dataclass(frozen=True, slots=True)
class TensorDecl:
    """One stored tensor of a scheme."""

    name: str
    axes: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Scheme:
    """All tensors that stand for one matrix."""

    name: str
    tensors: tuple[TensorDecl, ...]

    def tensor(self, name: str) -> TensorDecl:
        """The tensor of this name; a bias is the same in every scheme."""
        return next(tensor for tensor in (*self.tensors, BIAS) if tensor.name == name)


BIAS = TensorDecl("bias", (Axis("out"),))
PLAIN = Scheme("plain", (TensorDecl("weight", (Axis("out"), Axis("in"))),))
