"""Paged attention, and the batch as tensors.

Exactness: a query's result must not depend on how its prompt was cut into chunks or on what runs
beside it. So keys are taken in tiles that begin at fixed positions, each tile a product of fixed
shape, and tiles are added up from the first to the last with a running maximum. A tile that a
query does not see at all changes neither its sums nor its maximum, to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from octavo.backends.base import HostBatch
from octavo.layers import PagedAttention

QUERY_TILE = 8  # rows of one sequence taken together
KEY_TILE = 64  # positions of KV taken together


@dataclass
class Buffers:
    """The KV cache: one pair of tensors for each layer of the largest group."""

    keys: list[Tensor]  # [blocks × block_size, kv_heads, head_dim]
    values: list[Tensor]
    block_size: int


@dataclass
class TorchBatch:
    """A HostBatch as tensors, with what attention needs to know of it, worked out once a step."""

    token_ids: Tensor
    positions: Tensor
    logits_rows: Tensor
    hidden_rows: Tensor
    buffers: Buffers
    item_rows: Tensor  # [items, QUERY_TILE]: rows, the last one repeated to fill up
    item_positions: Tensor  # the same shape: their positions, -1 where filled up
    item_tables: list[Tensor]  # a group: [items, blocks]
    row_cells: list[Tensor]  # a group: [rows], the cell each row's K and V go to
    firsts: Tensor  # [items]: the smallest position
    lasts: Tensor  # [items]: the largest

    @classmethod
    def of(cls, batch: HostBatch, buffers: Buffers) -> TorchBatch:
        """Work out the items: runs of at most QUERY_TILE rows of one sequence."""
        rows, owners, fill = _items(batch.row_starts)
        positions = np.where(fill, -1, batch.positions[rows])
        row_owner = np.repeat(np.arange(len(batch.row_starts) - 1), np.diff(batch.row_starts))
        size = buffers.block_size
        at, offset = np.divmod(batch.positions, size)
        return cls(
            token_ids=torch.from_numpy(batch.token_ids).long(),
            positions=torch.from_numpy(batch.positions).long(),
            logits_rows=torch.from_numpy(batch.logits_rows).long(),
            hidden_rows=torch.from_numpy(batch.hidden_rows).long(),
            buffers=buffers,
            item_rows=torch.from_numpy(rows),
            item_positions=torch.from_numpy(positions),
            item_tables=[torch.from_numpy(table[owners]).long() for table in batch.tables],
            row_cells=[
                torch.from_numpy(table[row_owner, at] * np.int64(size) + offset)
                for table in batch.tables
            ],
            firsts=torch.from_numpy(positions[:, 0].copy()),
            lasts=torch.from_numpy(positions.max(axis=1)),
        )


def _items(row_starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of each item, the sequence it is of, and which of its rows only fill it up."""
    rows, owners, fill = [], [], []
    for owner, (start, stop) in enumerate(pairwise(row_starts)):
        for begin in range(start, stop, QUERY_TILE):
            tile = np.arange(begin, begin + QUERY_TILE)
            rows.append(np.minimum(tile, stop - 1))
            fill.append(tile >= stop)
            owners.append(owner)
    return np.array(rows, np.int64), np.array(owners, np.int64), np.array(fill)


def attend(q: Tensor, k: Tensor, v: Tensor, layer: PagedAttention, batch: TorchBatch) -> Tensor:
    """Write the new K and V to their cells, then attend over all that each query sees."""
    group, index = layer.place
    keys, values = batch.buffers.keys[index], batch.buffers.values[index]
    shape = (-1, layer.kv_heads, layer.head_dim)
    keys[batch.row_cells[group]] = k.reshape(shape).to(keys.dtype)
    values[batch.row_cells[group]] = v.reshape(shape).to(values.dtype)

    items = batch.item_rows.shape[0]
    per_kv = layer.heads // layer.kv_heads
    queries = q[batch.item_rows].float().reshape(items, QUERY_TILE, layer.kv_heads, per_kv, -1)
    queries = queries.permute(0, 2, 1, 3, 4).reshape(items, layer.kv_heads, -1, layer.head_dim)
    state = _begin(layer, items, per_kv)
    first_seen = torch.zeros_like(batch.firsts)
    if layer.window is not None:
        first_seen = (batch.firsts - layer.window + 1).clamp(min=0)
    first_tile, last_tile = first_seen // KEY_TILE, batch.lasts // KEY_TILE
    for tile in range(int(first_tile.min()), int(last_tile.max()) + 1):
        active = ((first_tile <= tile) & (tile <= last_tile)).nonzero().squeeze(1)
        if len(active):
            _add_tile(state, tile, active, queries, layer, batch, keys, values)
    out = state.sums / state.weights[..., None]
    out = out.reshape(items, layer.kv_heads, QUERY_TILE, per_kv, layer.head_dim)
    out = out.permute(0, 2, 1, 3, 4).reshape(items * QUERY_TILE, -1)
    real = batch.item_positions.flatten() >= 0
    result = torch.empty_like(q)
    result[batch.item_rows.flatten()[real]] = out[real].to(q.dtype)
    return result


@dataclass
class _State:
    """The running softmax: [items, kv_heads, queries] each, and the sums with head_dim behind."""

    maxima: Tensor
    weights: Tensor
    sums: Tensor


def _begin(layer: PagedAttention, items: int, per_kv: int) -> _State:
    shape = (items, layer.kv_heads, QUERY_TILE, per_kv)
    if layer.has_sinks:  # a sink is a key that every query sees and that has no value
        assert layer.sinks is not None
        sinks = layer.sinks.float().reshape(1, layer.kv_heads, 1, per_kv).expand(shape)
        maxima, weights = sinks.flatten(2).clone(), torch.ones(shape).flatten(2)
    else:
        maxima, weights = torch.full(shape, -torch.inf).flatten(2), torch.zeros(shape).flatten(2)
    return _State(maxima, weights, torch.zeros(*maxima.shape, layer.head_dim))


def _add_tile(
    state: _State,
    tile: int,
    active: Tensor,
    queries: Tensor,
    layer: PagedAttention,
    batch: TorchBatch,
    keys: Tensor,
    values: Tensor,
) -> None:
    positions = torch.arange(tile * KEY_TILE, (tile + 1) * KEY_TILE)
    size = batch.buffers.block_size
    table = batch.item_tables[layer.place[0]][active]
    blocks = table[:, (positions // size).clamp(max=table.shape[1] - 1)]
    cells = blocks * size + positions % size
    at = batch.item_positions[active][:, :, None]  # [items, QUERY_TILE, 1]
    seen = positions <= at
    if layer.window is not None:
        seen &= positions > at - layer.window
    per_kv = layer.heads // layer.kv_heads
    mask = seen[:, None, :, None].expand(-1, layer.kv_heads, -1, per_kv, -1).flatten(2, 3)
    k = keys[cells].float().permute(0, 2, 3, 1)  # [items, kv_heads, head_dim, KEY_TILE]
    # What no query of the item sees may be anything, NaN of a failed request included, and
    # nothing times NaN is NaN: it must not come near the sums.
    v = values[cells].float().masked_fill_(~seen.any(1)[:, :, None, None], 0.0)
    count = len(active) * layer.kv_heads
    scores = torch.bmm(queries[active].flatten(0, 1), k.reshape(count, layer.head_dim, KEY_TILE))
    scores = scores.reshape(mask.shape) * layer.scale
    if layer.softcap is not None:
        scores = torch.tanh(scores / layer.softcap) * layer.softcap
    scores = scores.masked_fill(~mask, -torch.inf)
    before = state.maxima[active]
    maxima = torch.maximum(before, scores.amax(-1))
    base = maxima.masked_fill(maxima == -torch.inf, 0.0)  # nothing seen yet: all exponents are 0
    shares = torch.exp(scores - base[..., None])
    keep = torch.exp(before - base)
    v = v.permute(0, 2, 1, 3).reshape(count, KEY_TILE, layer.head_dim)
    added = torch.bmm(shares.flatten(0, 1), v).reshape(*maxima.shape, layer.head_dim)
    state.maxima[active] = maxima
    state.weights[active] = state.weights[active] * keep + shares.sum(-1)
    state.sums[active] = state.sums[active] * keep[..., None] + added


def make_buffers(
    num_buffers: int, num_blocks: int, block_size: int, shape: tuple[int, int], dtype: torch.dtype
) -> Buffers:
    """An empty cache; zeros, so that what was never written is at least a number."""
    cells = (num_blocks * block_size, *shape)
    keys = [_zeros(cells, dtype) for _ in range(num_buffers)]
    values = [_zeros(cells, dtype) for _ in range(num_buffers)]
    return Buffers(keys, values, block_size)


def _zeros(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that cost no memory until they are written to: numpy's, since torch's are written."""
    plain = np.zeros((*shape[:-1], shape[-1] * dtype.itemsize), np.uint8)
    return torch.from_numpy(plain).view(dtype)
