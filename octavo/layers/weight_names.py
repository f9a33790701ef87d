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
class Pieces:
    """A tensor stored in pieces along its first axis: expert by expert, head by head.

    `@` is the piece's number. Several names are stacked along the output, as for any projection.
    """

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A tensor that checkpoints keep in different ways: the first that is there is taken."""

    ways: tuple[From | Pieces, ...]


# What a model's `weights` maps a layer's name to: a checkpoint name without ".weight"; several,
# to be stacked along the output; or one of the above. Where our name ends in a tensor's own
# ("… .gate_up_weight"), the checkpoint's name is the whole name.
WeightSource = str | From | Pieces | AnyOf | tuple["str | From", ...]


def grouped_rows(heads: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """Order for fused projections that keep a KV head's queries, its keys and its values together.

    The rows of all queries, then of all keys, then of all values, where the checkpoint has, for
    each KV head, its queries' heads, its keys and its values.
    """
    per_group = heads // kv_heads + 2
    starts = [
        *(group * per_group + head for group in range(kv_heads) for head in range(per_group - 2)),
        *(group * per_group + per_group - 2 for group in range(kv_heads)),
        *(group * per_group + per_group - 1 for group in range(kv_heads)),
    ]
    return tuple(start * head_dim + row for start in starts for row in range(head_dim))
