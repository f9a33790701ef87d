"""The size of a checkpoint's tensors, by their types."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct


class StoredBytes(Struct, frozen=True):
    """The tensors of a checkpoint that have one storage type."""

    type: str
    num_tensors: int
    num_bytes: int


def by_type(tensors: Sequence[tuple[str, int]]) -> tuple[StoredBytes, ...]:
    """Add up (storage type, bytes) of each tensor by type, the largest type first."""
    found: dict[str, tuple[int, int]] = {}
    for name, num_bytes in tensors:
        count, total = found.get(name, (0, 0))
        found[name] = count + 1, total + num_bytes
    rows = (StoredBytes(name, count, total) for name, (count, total) in found.items())
    return tuple(sorted(rows, key=lambda row: (-row.num_bytes, row.type)))
