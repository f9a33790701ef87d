"""Where the tensors of a layer are in a checkpoint, as data."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class StoredTensor(Struct, frozen=True):
    """A checkpoint tensor whose rows or axes are in another order than the layer's.

    `rows[i]` is the checkpoint's row that becomes row i of the layer; None keeps their order.
    """

    name: str
    rows: Sequence[int] | None = None
    transposed: bool = False  # stored [in, out]
    skipped: int = 0  # leading rows that the layer does not have


class HeadRows(Struct, frozen=True):
    """A run of each head's rows, of a tensor that keeps one head below the other."""

    name: str
    per_head: int  # rows of a head
    first: int
    stop: int
    transposed: bool = False  # each head's run


class Slices(Struct, frozen=True):
    """A tensor that the checkpoint keeps in slices along its first axis, by expert or by head.

    `@` in a name is the slice's number. Several names are stacked along the output, as for any
    projection.
    """

    names: tuple[str, ...]


class FirstOf(Struct, frozen=True):
    """A tensor that checkpoints keep in different ways; the first way that is present is used."""

    ways: tuple[str | StoredTensor | HeadRows | Slices | tuple[str, ...], ...]


# A value of `Model.weights`: a checkpoint name without ".weight"; several names, to be stacked
# along the output; or one of the classes above. If our name ends in a tensor's own name
# ("… .gate_up_weight"), the checkpoint's name is complete.
WeightSource = str | StoredTensor | HeadRows | Slices | FirstOf | tuple["str | StoredTensor", ...]


def grouped_rows(heads: int, kv_heads: int, head_dim: int) -> tuple[int, ...]:
    """Return the row order for a fused projection that is stored by KV head.

    The checkpoint has, for each KV head, its queries' heads, its keys and its values. The layer
    has the rows of all queries, then of all keys, then of all values.
    """
    per_group = heads // kv_heads + 2
    starts = [
        *(group * per_group + head for group in range(kv_heads) for head in range(per_group - 2)),
        *(group * per_group + per_group - 2 for group in range(kv_heads)),
        *(group * per_group + per_group - 1 for group in range(kv_heads)),
    ]
    return tuple(start * head_dim + row for start in starts for row in range(head_dim))
