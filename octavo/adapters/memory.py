"""The memory that adapters may take, from the sizes of the projections that they may change."""

from __future__ import annotations

from octavo.layers import Linear, Model

# The first matrices are packed in blocks of so many ranks and inputs, the second ones in halves of
# so many outputs, each of which has a description, magnitudes and a bias.
_RANKS, _INPUTS, _OUTPUTS = 4, 32, 16
_PANEL = 32  # outputs of a packed matrix are padded to so many
_NUMBERS_BYTES = 2 * 4 * _OUTPUTS
_HALF_BYTES, _SCALE_BYTES, _PROJECTION_BYTES = 32 + _NUMBERS_BYTES, 4, 256
_PAGE_BYTES, _HUGE_PAGE_BYTES = 4096, 2 << 20
_HUGE_FROM_BYTES = 8 << 20  # more than this is taken in huge pages


def largest_bytes(model: Model, rank: int, number_bytes: int) -> int:
    """Return the most that pairs of all projections and of the embedding take, packed."""
    num_bytes = sum(
        _packed_bytes(module, rank, number_bytes)
        for _, module in model.walk()
        if isinstance(module, Linear)
    )
    # An embedding has the low numbers of each token, and second matrices that lie as first ones.
    num_bytes += 4 * model.embed.vocabulary * rank + _down_bytes(
        model.embed.hidden, rank, number_bytes
    )
    return num_bytes + (_HUGE_PAGE_BYTES if num_bytes > _HUGE_FROM_BYTES else _PAGE_BYTES)


def whole_bytes(model: Model, number_bytes: int) -> int:
    """Return what a head and an embedding take that an adapter has in place of the model's."""
    inputs = _padded(model.embed.hidden, _INPUTS)
    table = _padded(model.embed.vocabulary, _PANEL) * inputs * number_bytes
    bias = 4 * model.embed.vocabulary
    return (1 if model.head is None else 2) * (table + bias + _PAGE_BYTES)


def _down_bytes(ranks: int, inputs: int, number_bytes: int) -> int:
    of_rank = _padded(inputs, _INPUTS) * number_bytes + _SCALE_BYTES
    return _padded(ranks, _RANKS) * of_rank + _PROJECTION_BYTES


def _packed_bytes(linear: Linear, rank: int, number_bytes: int) -> int:
    down = _down_bytes(len(linear.parts) * rank, linear.inputs, number_bytes)
    # Where parts end within a half, it has the numbers of both.
    num_shared = int(any(part.rows % _OUTPUTS for part in linear.parts))
    halves = sum(-(-part.rows // _OUTPUTS) + num_shared for part in linear.parts)
    up = halves * (_OUTPUTS * _padded(rank, 2) * number_bytes + _HALF_BYTES)
    return down + up


def _padded(number: int, unit: int) -> int:
    return -(-number // unit) * unit
