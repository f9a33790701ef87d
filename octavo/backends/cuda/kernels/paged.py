"""Launches the kernels of paged attention for the rows of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
import triton
from torch import Tensor

from octavo.backends.base import Ints
from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.batch import DeviceBatch
from octavo.backends.cuda.footprint import PART_BYTES
from octavo.backends.cuda.kernels.attention import (
    CHUNK,
    KEYS,
    attend_chunks,
    attend_rows,
    merge_chunks,
)
from octavo.backends.cuda.kernels.eight_bits import as_card_reads
from octavo.backends.cuda.kernels.place import all_of, place
from octavo.backends.cuda.kernels.rounding import Results, round_into
from octavo.backends.step import HostBatch
from octavo.backends.torch.attention import LayerCells
from octavo.program.listing import Attend

_LEAST_SIDE = 16  # of a tile that tensor cores multiply
_TILE_BYTES = 16 << 10  # of keys; as many of values, and more of each that are loaded early
# Both kernels add up a row in one order only if they divide a tile among threads alike: its columns
# among 4 warps, with 16 queries for each. Products of 64 queries are other instructions on newer
# cards (wgmma, tcgen05), whose sums may differ.
_MOST_QUERIES = 32  # of one program of a prompt, unless a row has more in a KV head
_PROMPT_WARPS, _ROW_WARPS = 8, 4
# Of a launch over chunks, at most: more than any card runs at once. Each computes several chunks.
_MOST_PROGRAMS = 2048
# Of a row that one program merges to round it, whose parts come to one processor alone: at some
# 100 GB/s, 16 KiB of a chunk take less time than a further launch while there are not more.
_MOST_MERGED = 16
_OF_WARP, _MOST_MERGING_WARPS = 512, 16  # numbers of whole rows that a warp merges


@dataclass
class Work:
    """The work of a step's attention for layers with one window, as the device has it."""

    prompts: Tensor | None  # of attend_rows
    # For each launch: of attend_chunks, whose first row says how many there are; of merge_chunks.
    decodes: list[tuple[Tensor, Tensor]]


class PagedBatch:
    """The part of a batch that kernels read, beside what torch's operations use."""

    def __init__(self, home: Accelerator, positions: Tensor, tables: Sequence[Tensor]) -> None:
        self.home, self.positions, self.tables = home, positions, tables
        self._work: dict[tuple[int, int, int], Work] = {}

    def work(self, layer: Attend, num_rows: int) -> Work:
        """Return the work of layers of one shape, planned when the first of them runs."""
        most = most_chunks(layer)
        key = layer.window, num_rows, most
        if key not in self._work:
            self._work[key] = self._planned(*key)
        return self._work[key]

    def _planned(self, window: int, num_rows: int, most: int) -> Work:
        raise NotImplementedError


class PlannedBatch(PagedBatch):
    """A batch of any rows, whose work the host plans."""

    def __init__(self, host: HostBatch, home: Accelerator) -> None:
        on_device = home.upload([each.astype(np.int32) for each in (host.positions, *host.tables)])
        super().__init__(home, on_device[0], on_device[1:])
        self._host = host

    def _planned(self, window: int, num_rows: int, most: int) -> Work:
        prompts, launches = plan(self._host, window, num_rows, most)
        flat = [each for chunks, rows in launches for each in (_counted(chunks), rows)]
        on_device = self.home.upload([prompts, *flat])
        others = on_device[1:]
        return Work(
            on_device[0] if len(prompts) else None,
            list(zip(others[0::2], others[1::2], strict=True)),
        )


class GraphWork(PagedBatch):
    """A batch of one row for each sequence, whose work the device plans itself, for a graph."""

    def __init__(
        self, home: Accelerator, at: Tensor, tables: Sequence[Tensor], block_size: int
    ) -> None:
        super().__init__(home, at.clamp(min=0).int(), tables)
        self._at = at  # the position of each row; below 0: it is none
        self._most = len(at) * triton.cdiv(tables[0].shape[1] * block_size, CHUNK)

    def _planned(self, window: int, num_rows: int, most: int) -> Work:
        """Number the chunks of all rows, one row after the other, as `plan` does."""
        at = self._at
        first = torch.zeros_like(at)
        if window:
            first = (at - window + 1).clamp(min=0) // CHUNK
        counts = torch.where(at < 0, 0, at // CHUNK + 1 - first)
        ends = counts.cumsum(0)
        begins = ends - counts
        places = torch.arange(min(most, self._most), device=at.device)
        owners = torch.searchsorted(ends, places, right=True).clamp(max=len(at) - 1)
        numbers = places - begins[owners] + first[owners]
        chunks = torch.stack((owners, owners, numbers), 1)
        count = torch.zeros_like(chunks[:1])
        count[:, :1] = ends[-1:, None]
        rows = torch.stack((torch.arange(len(at), device=at.device), begins, counts), 1)
        return Work(None, [(torch.cat((count, chunks)).int(), rows.int())])


def most_chunks(layer: Attend) -> int:
    """Return the most chunks of one launch, whose parts have a bound."""
    return max(1, PART_BYTES // (layer.heads * (layer.head_dim + 2) * 4))


def plan(
    host: HostBatch, window: int, num_rows: int, most_chunks: int
) -> tuple[Ints, list[tuple[Ints, Ints]]]:
    """Return the items of prompts, and for each launch of decodes its chunks and its rows.

    A launch has one row at least, and more only while it has at most `most_chunks`.
    """
    prompts: list[tuple[int, int, int]] = []
    launches: list[tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]] = []
    for sequence, (start, stop) in enumerate(pairwise(host.row_starts.tolist())):
        if stop - start > 1:
            prompts.extend(
                (sequence, row, min(num_rows, stop - row)) for row in range(start, stop, num_rows)
            )
            continue
        last = int(host.positions[start])
        first = max(0, last - window + 1) if window else 0
        chunks = range(first // CHUNK, last // CHUNK + 1)
        if not launches or len(launches[-1][0]) + len(chunks) > most_chunks:
            launches.append(([], []))
        parts, rows = launches[-1]
        rows.append((start, len(parts), len(chunks)))
        parts.extend((sequence, start, chunk) for chunk in chunks)
    return _triples(prompts), [(_triples(parts), _triples(rows)) for parts, rows in launches]


def _counted(chunks: Ints) -> Ints:
    """Return chunks behind a row that says how many there are."""
    return np.concatenate(([[len(chunks), 0, 0]], chunks)).astype(np.int32)


def _triples(items: Sequence[tuple[int, int, int]]) -> Ints:
    return np.array(items, np.int32).reshape(-1, 3)


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer: Attend,
    batch: DeviceBatch,
    turns: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Write the new K and V to their cells, then attend over all positions that a query sees.

    `turns` are the tables of the layer's rotation, if it has one.
    """
    out = q.new_empty(len(q), layer.heads * layer.head_dim)
    attend_into(Results(out), q, k, v, layer, batch, turns)
    return out


def attend_into(
    results: Results,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer: Attend,
    batch: DeviceBatch,
    turns: tuple[Tensor, Tensor] | None = None,
) -> None:
    """Write the new K and V to their cells too, and the attention to its results.

    Rows are rounded by the programs that merge their chunks, if one has all heads of a row.
    """
    group, index = layer.place
    cells = batch.buffers.layers[group][index]
    paged = batch.paged
    q = place(q, k, v, layer, turns, cells, batch.row_cells[group], paged.home)
    num_rows = max(1, _MOST_QUERIES // (layer.heads // layer.kv_heads))
    work, table = paged.work(layer, num_rows), paged.tables[group]
    merges_rows = results.codes is not None and work.prompts is None and _is_short(layer, batch)
    out = results.floats
    if out is None and not merges_rows:
        out = torch.empty_like(q)
    kept = (as_card_reads(each, paged.home) for each in all_of(cells)[:2])
    launches = _Launches(
        home=paged.home,
        layer=layer,
        read=(q, *kept, *all_of(cells)[2:], table, paged.positions),
        numbers=(
            *(q.stride(0), table.stride(0), cells.keys.stride(0), cells.keys.stride(1)),
            batch.buffers.block_size,
            *(layer.scale, layer.softcap, layer.window, layer.head_dim),
        ),
        sinks=paged.positions if layer.sinks is None else layer.sinks,
        tiles=_tiles(q, layer, cells),
    )
    if work.prompts is not None:
        assert out is not None
        launches.prompts(work.prompts, num_rows, out)
    for chunks, rows in work.decodes:
        launches.decodes(chunks, rows, results if merges_rows else Results(out))
    if results.codes is not None and results.scales is not None and not merges_rows:
        assert out is not None
        round_into(results.codes, results.scales, out, results.scale, paged.home)


class _Launches(NamedTuple):
    """The launches of one attention, with what all of them read."""

    home: Accelerator
    layer: Attend
    read: tuple[Tensor, ...]  # queries first
    numbers: tuple[float, ...]
    sinks: Tensor
    tiles: dict[str, int]

    @property
    def per_kv(self) -> int:
        return self.layer.heads // self.layer.kv_heads

    @property
    def has_sinks(self) -> bool:
        return self.layer.sinks is not None

    def prompts(self, items: Tensor, num_rows: int, out: Tensor) -> None:
        """Write the attention of rows that have others of their sequence beside them."""
        self.home.launch(
            attend_rows,
            (len(items), self.layer.kv_heads),
            (*self.read, self.sinks, items, out),
            self.numbers,
            num_rows=num_rows,
            num_queries=max(_LEAST_SIDE, triton.next_power_of_2(num_rows * self.per_kv)),
            has_sinks=self.has_sinks,
            num_warps=_PROMPT_WARPS if num_rows > 1 else _ROW_WARPS,
            **self.tiles,
        )

    def decodes(self, chunks: Tensor, rows: Tensor, results: Results) -> None:
        """Write the attention of rows that are alone; of whole rows where it becomes codes."""
        layer, q = self.layer, self.read[0]
        count = len(chunks) - 1
        parts = _parts(count * layer.heads, layer.head_dim, q)
        self.home.launch(
            attend_chunks,
            (min(count, max(1, _MOST_PROGRAMS // layer.kv_heads)), layer.kv_heads),
            (*self.read, chunks, *parts),
            self.numbers,
            num_queries=max(_LEAST_SIDE, triton.next_power_of_2(self.per_kv)),
            num_warps=_ROW_WARPS,
            **self.tiles,
        )
        is_whole = results.codes is not None
        per_kv = layer.heads if is_whole else self.per_kv
        queries = max(_LEAST_SIDE, triton.next_power_of_2(per_kv))
        block_dim = self.tiles["block_dim"]
        warps = min(max(queries * block_dim // _OF_WARP, 4), _MOST_MERGING_WARPS)
        self.home.launch(
            merge_chunks,
            (len(rows), layer.heads // per_kv),
            (*parts, self.sinks, rows, *results.tensors(q)),
            (layer.head_dim, *results.numbers),
            per_kv=per_kv,
            num_queries=queries,
            block_dim=block_dim,
            has_sinks=self.has_sinks,
            num_warps=warps if is_whole else 4,
            **results.constants,
        )


def _is_short(layer: Attend, batch: DeviceBatch) -> bool:
    """Return whether no row has more chunks than one program merges in a launch's time."""
    table = batch.paged.tables[layer.place[0]]
    most = table.shape[1] * batch.buffers.block_size
    return min(layer.window or most, most) <= _MOST_MERGED * CHUNK


def _tiles(q: Tensor, layer: Attend, cells: LayerCells) -> dict[str, int]:
    """Return the sizes and forms of tiles, which are constants of both kernels over keys."""
    block_dim = max(_LEAST_SIDE, triton.next_power_of_2(layer.head_dim))
    return {
        "per_kv": layer.heads // layer.kv_heads,
        "block_dim": block_dim,
        "chunk_size": CHUNK,
        "num_keys": max(_LEAST_SIDE, min(KEYS, _TILE_BYTES // (block_dim * q.element_size()))),
        "exact": q.dtype == torch.float32,
        "is_short": cells.key_exponents is not None,
    }


def _parts(count: int, dim: int, q: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return room for the largest score, the weights and the sums of so many heads of chunks."""
    m, weights = (q.new_empty(count, dtype=torch.float32) for _ in range(2))
    return m, weights, q.new_empty(count * dim, dtype=torch.float32)
