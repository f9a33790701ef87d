"""The memory that adapters may take, from the sizes of the projections that they may change."""

from __future__ import annotations

from octavo.layers import Linear, Model

# The first matrices are packed in blocks of so many ranks and inputs, the second ones in halves of
# so many outputs, each of which has a description, magnitudes and a bias.
_RANKS, _INPUTS, _OUTPUTS = 4, 32, 16
_NUMBERS_BYTES = 2 * 4 * _OUTPUTS
_HALF_BYTES, _SCALE_BYTES, _PROJECTION_BYTES = 32 + _NUMBERS_BYTES, 4, 256
_PAGE_BYTES, _HUGE_PAGE_BYTES = 4096, 2 << 20
_HUGE_FROM_BYTES = 8 << 20  # more than this is taken in huge pages


def largest_bytes(model: Model, rank: int, number_bytes: int) -> int:
    """Return the most that an adapter of all projections of the blocks takes, packed."""
    num_bytes = sum(
        _packed_bytes(module, rank, number_bytes)
        for _, module in model.walk()
        if isinstance(module, Linear) and module is not model.head
    )
    return num_bytes + (_HUGE_PAGE_BYTES if num_bytes > _HUGE_FROM_BYTES else _PAGE_BYTES)


def _packed_bytes(linear: Linear, rank: int, number_bytes: int) -> int:
    ranks = _padded(len(linear.parts) * rank, _RANKS)
    down = ranks * (_padded(linear.inputs, _INPUTS) * number_bytes + _SCALE_BYTES)
    # Where parts end within a half, it has the numbers of both.
    num_shared = int(any(part.rows % _OUTPUTS for part in linear.parts))
    halves = sum(-(-part.rows // _OUTPUTS) + num_shared for part in linear.parts)
    up = halves * (_OUTPUTS * _padded(rank, 2) * number_bytes + _HALF_BYTES)
    return down + up + _PROJECTION_BYTES


def _padded(number: int, unit: int) -> int:
    return -(-number // unit) * unit
