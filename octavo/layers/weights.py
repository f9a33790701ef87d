"""Where a layer's tensors are in a checkpoint, said as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class From:
    """One checkpoint tensor that is not simply stored as the layer wants it.

    `rows[i]` is the checkpoint's row that becomes row i of ours; None takes them in order.
    """

    name: str
    rows: Sequence[int] | None = None
    transposed: bool = False  # stored [in, out]


@dataclass(frozen=True, slots=True)
class Experts:
    """A tensor a layer keeps for all experts, stored expert by expert (`@` is the expert's number).

    Several names are stacked along the output, as for any projection.
    """

    names: tuple[str, ...]


# What a model's `weights` maps a layer's name to: a checkpoint name without ".weight"; several,
# to be stacked along the output; or one of the above.
WeightSource = str | From | Experts | tuple["str | From", ...]
