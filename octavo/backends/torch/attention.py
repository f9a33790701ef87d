"""Paged attention, and the batch as tensors.

Exactness: a query's result must not depend on how its prompt was cut into chunks or on the other
sequences of the batch. Keys are therefore processed in tiles that begin at fixed positions. Each
tile is a product of fixed shape, and tiles are added from the first to the last with a running
maximum. A tile that a query does not see at all changes no bit of its sums or its maximum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import numpy as np
import torch
from torch import Tensor

from octavo.backends.base import KVLayout, KVPages, Longs
from octavo.backends.step import Bytes, HostBatch
from octavo.backends.torch import eight_bits
from octavo.backends.torch.adapters import TorchAdapter
from octavo.backends.torch.device import HOST, TensorDevice
from octavo.backends.torch.footprint import is_short, kv_pages
from octavo.program.listing import Attend, Distances

QUERY_TILE = 8  # rows of one sequence processed together
KEY_TILE = 64  # positions of KV processed together
MOST_KEPT_CELLS = 1 << 23  # in a batch's cached tiles: about 140 MB
AdapterSlots = dict[int, tuple[TorchAdapter, float]]
_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}


@dataclass(frozen=True)
class LayerCells:
    """Views of the pool that have one layer's cells; its part of a block is contiguous."""

    # [blocks, block_size, kv_heads, head_dim]; of rows and states [blocks, parts, numbers]
    keys: Tensor
    values: Tensor  # the same cells, where values are a part of the keys
    # Of keys and values in eight bits, which are bytes: the exponents of their scales, bytes too,
    # [blocks, block_size, kv_heads].
    key_exponents: Tensor | None = None
    value_exponents: Tensor | None = None


@dataclass
class Buffers:
    """The KV cache: a pool of bytes, with views of it for each layer of each group."""

    block_size: int
    layers: list[list[LayerCells]]  # by group
    blocks: list[Tensor]  # for each group [blocks, bytes]
    home: TensorDevice = HOST  # the device of these tensors
    dtype: torch.dtype = torch.float32  # of the values that are computed

    def copy(self, source: int, destination: int, group: int) -> None:
        """Copy one block of a group."""
        self.blocks[group][destination] = self.blocks[group][source]

    def block_bytes(self, group: int) -> int:
        """Return the size of a block of a group."""
        return self.blocks[group].shape[1]

    def save(self, places: Sequence[tuple[int, int]]) -> tuple[Bytes, ...]:
        """Return the bytes of blocks, each given with its group."""
        blocks = [self.blocks[group][block] for block, group in places]
        return tuple([content.copy() for content in self.home.fetch(blocks)])

    def load(self, block: int, group: int, content: Bytes) -> None:
        """Write what was saved of a block into one."""
        if content.nbytes != self.block_bytes(group):
            raise ValueError(
                f"a block has {self.block_bytes(group)} bytes; {content.nbytes} cannot be loaded"
            )
        (self.blocks[group][block],) = self.home.upload([content])


@dataclass(frozen=True)
class Tile:
    """KEY_TILE positions of the cache, with the items that see any of them."""

    items: Tensor | slice  # often all of them
    cells: tuple[Tensor, Tensor]  # the places of the keys and values: [items, KEY_TILE] together
    hidden: Tensor | None  # [items, 1, QUERY_TILE, 1, KEY_TILE]: hidden from a query
    unseen: Tensor | None  # [items, KEY_TILE, 1, 1]: hidden from all queries of an item


@dataclass
class TorchBatch:
    """A HostBatch as tensors, with the indices for attention, computed once a step."""

    host: HostBatch
    token_ids: Tensor
    positions: Tensor
    logits_rows: Tensor
    hidden_rows: Tensor
    buffers: Buffers
    item_rows: Tensor  # [items, QUERY_TILE]: rows, the last one repeated to fill up
    item_positions: Tensor  # the same shape: their positions, -1 where filled up
    item_tables: list[Tensor]  # for each group [items, blocks]
    row_cells: list[tuple[Tensor, Tensor]]  # for each group the cells of the rows' K and V
    row_places: Tensor  # [rows]: the index of each row in item_rows
    ends: Tensor  # [items]: the last position of the item's sequence
    types: Tensor  # [rows]
    # Of each item on the host: its smallest and largest position, and its sequence's last.
    bounds: tuple[Longs, Longs, Longs]
    spans: dict[tuple[int, bool], tuple[Longs, Longs, range]] = field(default_factory=dict)
    tiles: dict[tuple[int, int, int, bool, int], Tile | None] = field(default_factory=dict)
    num_kept: int = 0  # cells in `tiles`
    # Rows whose K and V are kept in the tables of other sequences too, and for each group where.
    echo_rows: Tensor | None = None
    echo_cells: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    given: Tensor | None = None  # of a program that reads states: one for each row
    # What the slots have, each with the factor of what it adds.
    adapter_slots: AdapterSlots = field(default_factory=dict)

    @classmethod
    def of(
        cls, batch: HostBatch, buffers: Buffers, adapter_slots: AdapterSlots | None = None
    ) -> TorchBatch:
        """Split the rows into items: runs of at most QUERY_TILE rows of one sequence."""
        rows, owners, fill = _items(batch.row_starts)
        positions = np.where(fill, -1, batch.positions[rows])
        row_owner = np.repeat(np.arange(len(batch.row_starts) - 1), np.diff(batch.row_starts))
        at, inside = np.divmod(batch.positions, buffers.block_size)
        ends = batch.positions[batch.row_starts[1:] - 1][owners]
        types = batch.types if len(batch.types) else np.zeros_like(batch.token_ids)
        arrays = (
            *(batch.token_ids, batch.positions, batch.logits_rows, batch.hidden_rows),
            *(rows, positions, np.flatnonzero(~fill), ends, types, inside),
            *(table[owners] for table in batch.tables),
            *(table[row_owner, at] for table in batch.tables),
        )
        on_device = buffers.home.upload([each.astype(np.int64) for each in arrays])
        tables, cells = on_device[10 : 10 + len(batch.tables)], on_device[10 + len(batch.tables) :]
        echo_rows, echo_cells = _echoes(batch, buffers)
        return cls(
            host=batch,
            token_ids=on_device[0],
            positions=on_device[1],
            logits_rows=on_device[2],
            hidden_rows=on_device[3],
            buffers=buffers,
            item_rows=on_device[4],
            item_positions=on_device[5],
            item_tables=tables,
            row_cells=[(blocks, on_device[9]) for blocks in cells],
            row_places=on_device[6],
            ends=on_device[7],
            types=on_device[8],
            bounds=(positions[:, 0], positions.max(axis=1), ends.astype(np.int64)),
            echo_rows=echo_rows,
            echo_cells=echo_cells,
            adapter_slots=adapter_slots or {},
        )

    def write(
        self, group: int, cells: Tensor, rows: Tensor, exponents: Tensor | None = None
    ) -> None:
        """Write each row to its place among the cells of a layer, and to those of its echoes.

        Where the cells have exponents, rows are rounded to eight bits.
        """
        if exponents is not None:
            found = eight_bits.exponents_of(rows)
            self.write(group, exponents, found)
            rows = eight_bits.codes_of(rows, found).view(torch.uint8)
        cells[self.row_cells[group]] = rows.to(cells.dtype)
        if self.echo_rows is not None:
            cells[self.echo_cells[group]] = rows[self.echo_rows].to(cells.dtype)

    @property
    def device(self) -> torch.device:
        """The device of all tensors."""
        return self.buffers.home.device

    def span(self, window: int, both_ways: bool) -> tuple[Longs, Longs, range]:
        """Return the first and the last tile that each item sees, and the range of all tiles."""
        key = window, both_ways
        if key not in self.spans:
            firsts, lasts, ends = self.bounds
            seen, until = np.zeros_like(firsts), lasts
            if window:
                seen = (firsts - window + 1).clip(min=0)
            if both_ways:
                until = np.minimum(ends, lasts + window - 1) if window else ends
            first, last = seen // KEY_TILE, until // KEY_TILE
            self.spans[key] = first, last, range(int(first.min()), int(last.max()) + 1)
        return self.spans[key]

    def tile(
        self, group: int, window: int, skipped: int, both_ways: bool, number: int
    ) -> Tile | None:
        """Return one tile for the layers of a group; None if no item sees it.

        All layers of the group use the same tile, so it is cached unless the batch is very large.
        """
        key = (group, window, skipped, both_ways, number)
        if key in self.tiles:
            return self.tiles[key]
        tile = self._tile(*key)
        num_cells = 0 if tile is None else tile.cells[0].numel()
        if self.num_kept + num_cells <= MOST_KEPT_CELLS:
            self.tiles[key] = tile
            self.num_kept += num_cells
        return tile

    def _tile(
        self, group: int, window: int, skipped: int, both_ways: bool, number: int
    ) -> Tile | None:
        first, last, _ = self.span(window, both_ways)
        active = np.flatnonzero((first <= number) & (number <= last))
        if not len(active):
            return None
        items = slice(None) if len(active) == len(first) else torch.from_numpy(active)
        cells, seen = self.cells_and_seen(items, group, window, skipped, both_ways, number)
        unseen = ~seen.any(1)
        return Tile(
            items,
            cells,
            None if seen.all() else ~seen[:, None, :, None],
            unseen[:, :, None, None] if unseen.any() else None,
        )

    def cells_and_seen(
        self,
        items: Tensor | slice,
        group: int,
        window: int,
        skipped: int,
        both_ways: bool,
        number: int,
    ) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return the cells of a tile, and what each query sees: [items, QUERY_TILE, KEY_TILE]."""
        positions = torch.arange(number * KEY_TILE, (number + 1) * KEY_TILE, device=self.device)
        size = self.buffers.block_size
        table = self.item_tables[group][items]
        blocks = table[:, (positions // size).clamp(max=table.shape[1] - 1)]
        at = self.item_positions[items][:, :, None]  # [items, QUERY_TILE, 1]
        seen = positions <= (self.ends[items][:, None, None] if both_ways else at)
        if window:
            seen = seen & (positions > at - window) & (positions < at + window)
        if skipped:
            seen = seen & ((positions >= skipped) | (positions == at))
        return (blocks, positions % size), seen


def _echoes(
    batch: HostBatch, buffers: Buffers
) -> tuple[Tensor | None, list[tuple[Tensor, Tensor]]]:
    """Return the rows that are kept twice, and for each group the cells of their echoes."""
    if not len(batch.echoes):
        return None, []
    echoes = batch.echoes.reshape(-1, 3)
    rows = np.concatenate([np.arange(first, first + count) for first, count, _ in echoes])
    owners = np.repeat(echoes[:, 2], echoes[:, 1])
    at, inside = np.divmod(batch.positions[rows], buffers.block_size)
    blocks = [table[owners, at] for table in batch.tables]
    on_device = buffers.home.upload([each.astype(np.int64) for each in (rows, inside, *blocks)])
    return on_device[0], [(each, on_device[1]) for each in on_device[2:]]


def _items(row_starts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return each item's rows, its sequence, and which of its rows are padding."""
    rows, owners, fill = [], [], []
    for owner, (start, stop) in enumerate(pairwise(row_starts)):
        for begin in range(start, stop, QUERY_TILE):
            tile = np.arange(begin, begin + QUERY_TILE)
            rows.append(np.minimum(tile, stop - 1))
            fill.append(tile >= stop)
            owners.append(owner)
    return np.array(rows, np.int64), np.array(owners, np.int64), np.array(fill)


def write(k: Tensor, v: Tensor, layer: Attend, batch: TorchBatch) -> LayerCells:
    """Write the new K and V to their cells; return all cells of the layer."""
    group, index = layer.place
    cells = batch.buffers.layers[group][index]
    shape = (-1, layer.kv_heads, layer.head_dim)
    if layer.latent:
        k, cells = torch.cat((k, v), 1), replace(cells, values=cells.keys[..., -layer.latent :])
    else:
        batch.write(group, cells.values, v.reshape(shape), cells.value_exponents)
    batch.write(group, cells.keys, k.reshape(shape), cells.key_exponents)
    return cells


def read(cells: Tensor, exponents: Tensor | None, places: tuple[Tensor, Tensor]) -> Tensor:
    """Return what some cells have, in float32."""
    if exponents is None:
        return cells[places].float()
    return eight_bits.decoded(cells[places].view(eight_bits.CODES), exponents[places])


def attend(q: Tensor, k: Tensor, v: Tensor, layer: Attend, batch: TorchBatch) -> Tensor:
    """Write the new K and V to their cells, then attend over all positions that a query sees."""
    group = layer.place[0]
    cells = write(k, v, layer, batch)

    items = batch.item_rows.shape[0]
    per_kv = layer.heads // layer.kv_heads
    queries = q[batch.item_rows].float().reshape(items, QUERY_TILE, layer.kv_heads, per_kv, -1)
    queries = queries.permute(0, 2, 1, 3, 4).reshape(items, layer.kv_heads, -1, layer.head_dim)
    state = _begin(layer, items, per_kv, queries.device)
    by_distance = None
    if layer.distances is not None:
        by_distance = _values_by_distance(layer.distances, batch.buffers.home)
    for number in batch.span(layer.window, layer.both_ways)[2]:
        tile = batch.tile(group, layer.window, layer.skipped, layer.both_ways, number)
        if tile is None:
            continue
        bias = None
        if by_distance is not None:
            at = batch.item_positions[tile.items]
            bias = _bias(by_distance, number, at, layer.kv_heads)
        _add_tile(state, tile, queries, layer, cells, bias)
    out = state.sums / state.weights[..., None]
    out = out.reshape(items, layer.kv_heads, QUERY_TILE, per_kv, layer.value_dim)
    out = out.permute(0, 2, 1, 3, 4).reshape(items * QUERY_TILE, -1)
    return out[batch.row_places].to(q.dtype)


def _values_by_distance(distances: Distances, home: TensorDevice) -> Tensor:
    """Return what each head adds for each distance: [heads, 2 · reach + 1]."""
    buckets = home.constant(
        ("distances", distances.buckets), lambda: np.array(distances.buckets, np.int64)
    )
    values: Tensor = distances.weight.float()[buckets].T
    return values


def _bias(by_distance: Tensor, number: int, at: Tensor, kv_heads: int) -> Tensor:
    """Return what is added to a tile's scores: [items, kv_heads, queries, KEY_TILE]."""
    reach = by_distance.shape[1] // 2
    positions = torch.arange(number * KEY_TILE, (number + 1) * KEY_TILE, device=at.device)
    steps = (positions - at[:, :, None]).clamp(-reach, reach) + reach
    added = by_distance[:, steps]  # [heads, items, QUERY_TILE, KEY_TILE]
    items = added.shape[1]
    return added.reshape(kv_heads, -1, items, QUERY_TILE, KEY_TILE).permute(2, 0, 3, 1, 4)


@dataclass
class _State:
    """The running softmax: [items, kv_heads, queries] each; sums have a last axis head_dim."""

    maxima: Tensor
    weights: Tensor
    sums: Tensor


def _begin(layer: Attend, items: int, per_kv: int, device: torch.device) -> _State:
    shape = (items, layer.kv_heads, QUERY_TILE, per_kv)
    if layer.sinks is not None:  # a sink is a key that every query sees and that has no value
        sinks = layer.sinks.float().reshape(1, layer.kv_heads, 1, per_kv).expand(shape)
        maxima = sinks.flatten(2).clone()
        weights = torch.ones_like(maxima)
    else:
        maxima = torch.full(shape, -torch.inf, device=device).flatten(2)
        weights = torch.zeros_like(maxima)
    return _State(maxima, weights, maxima.new_zeros(*maxima.shape, layer.value_dim))


def _add_tile(
    state: _State,
    tile: Tile,
    queries: Tensor,
    layer: Attend,
    cells: LayerCells,
    bias: Tensor | None,
) -> None:
    asking = queries[tile.items]
    num_items, kv_heads, num_queries, head_dim = asking.shape
    count = num_items * kv_heads
    k = read(cells.keys, cells.key_exponents, tile.cells)
    k = k.permute(0, 2, 3, 1)  # [items, kv_heads, head_dim, KEY_TILE]
    v = read(cells.values, cells.value_exponents, tile.cells)
    if tile.unseen is not None:
        # Positions that no query of the item sees may hold anything, even NaN of a failed request.
        # Zero times NaN is NaN, so the values must not reach the sums.
        v.masked_fill_(tile.unseen, 0.0)
    scores = torch.bmm(asking.flatten(0, 1), k.reshape(count, head_dim, KEY_TILE)) * layer.scale
    if layer.softcap:
        scores = torch.tanh(scores / layer.softcap) * layer.softcap
    if bias is not None:
        scores += bias.reshape(scores.shape)
    if tile.hidden is not None:
        by_row = scores.view(num_items, kv_heads, QUERY_TILE, -1, KEY_TILE)
        by_row.masked_fill_(tile.hidden, -torch.inf)
    scores = scores.view(num_items, kv_heads, num_queries, KEY_TILE)
    before = state.maxima[tile.items]
    maxima = torch.maximum(before, scores.amax(-1))
    base = maxima.masked_fill(maxima == -torch.inf, 0.0)  # nothing seen so far
    shares = torch.exp(scores - base[..., None])
    keep = torch.exp(before - base)
    v = v.permute(0, 2, 1, 3).reshape(count, KEY_TILE, -1)
    added = torch.bmm(shares.flatten(0, 1), v).reshape(*maxima.shape, -1)
    state.weights[tile.items] = state.weights[tile.items] * keep + shares.sum(-1)
    state.sums[tile.items] = state.sums[tile.items] * keep[..., None] + added
    state.maxima[tile.items] = maxima


def make_buffers(
    layout: KVLayout,
    num_pages: int,
    block_size: int,
    dtype: torch.dtype,
    *,
    has_short_kv: bool = False,
) -> Buffers:
    """Make an empty cache of zeros, so that cells that were never written are numbers.

    The system's fresh pages are zero, and take no memory until they are written. An allocator would
    write zeros to memory that it uses again.
    """
    pages = kv_pages(layout, block_size, _NAMES[dtype], has_short_kv=has_short_kv)
    memory = mmap(-1, num_pages * pages.page_bytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    pool = torch.frombuffer(memory, dtype=torch.uint8)
    return buffers_in(pool, layout, pages, block_size, dtype, has_short_kv=has_short_kv)


def buffers_in(
    pool: Tensor,
    layout: KVLayout,
    pages: KVPages,
    block_size: int,
    dtype: torch.dtype,
    home: TensorDevice = HOST,
    *,
    has_short_kv: bool = False,
) -> Buffers:
    """Make a cache in a pool of bytes, whatever device has it."""
    made = Buffers(block_size, [], [], home, dtype)
    for number, (spec, num_layers, _) in enumerate(layout.groups):
        made.blocks.append(pool.view(-1, pages.block_bytes(number)))
        blocks = made.blocks[-1]
        if spec.is_exact:
            shape: tuple[int, ...] = (num_layers, spec.block_vectors(block_size), spec.dim)
            parts = _numbers(blocks, 0, shape, torch.float32).unbind(1)
            made.layers.append([LayerCells(part, part) for part in parts])
            continue
        per_layer = spec.vectors // spec.heads  # keys and values, or both in one
        vectors = (num_layers, per_layer, block_size, spec.heads)
        if has_short_kv and is_short(spec):
            codes = _numbers(blocks, 0, (*vectors, spec.dim), torch.uint8)
            exponents = _numbers(blocks, codes[0].numel(), vectors, torch.uint8)
            made.layers.append(
                [
                    LayerCells(
                        *(each[:, at, part] for each in (codes, exponents) for part in (0, -1))
                    )
                    for at in range(num_layers)
                ]
            )
            continue
        arrays = _numbers(blocks, 0, (*vectors, spec.dim), dtype)
        made.layers.append(
            [LayerCells(arrays[:, at, 0], arrays[:, at, -1]) for at in range(num_layers)]
        )
    return made


def _numbers(blocks: Tensor, first: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a part of each block as numbers [blocks, …], behind so many of them."""
    count = math.prod(shape)
    return blocks.view(dtype)[:, first : first + count].view(-1, *shape)
