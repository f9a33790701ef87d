"""Paged attention equals the formula, and the rest of a batch changes no bit of a result."""

from __future__ import annotations

import resource
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from octavo.backends.base import KVLayers, KVLayout
from octavo.backends.step import HostBatch, batch_of_copies
from octavo.backends.torch import attention
from octavo.backends.torch.attention import (
    Buffers,
    TorchBatch,
    attend,
    make_buffers,
)
from octavo.backends.torch.backend import TorchBackend
from octavo.layers import KVSpec
from octavo.program.listing import Attend
from tests.runner.tiny import FULL, make_model

BLOCK_SIZE = 4
NUM_BLOCKS = 160
# Lengths of sequences: shorter than, equal to and longer than the tiles of queries and keys.
LENGTHS = (1, 9, 64, 65, 150)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 10},
    "window of a tile and more": {"window": 70},
    "soft cap": {"softcap": 2.0},
    "sinks": {"sinks": True},
    "all of it": {"window": 10, "softcap": 2.0, "sinks": True},
}
QKV = tuple[Tensor, Tensor, Tensor]


def make_layer(kind: str, heads: int = 4, kv_heads: int = 2, head_dim: int = 12) -> Attend:
    more = {"window": 0, "softcap": 0.0, **KINDS[kind]}
    more["sinks"] = torch.linspace(-1, 1, heads) if more.get("sinks") else None
    return Attend(heads, kv_heads, head_dim, head_dim**-0.5, place=(0, 0), **more)


def make_sequence(layer: Attend, length: int, seed: int) -> QKV:
    generator = torch.Generator().manual_seed(seed)
    widths = (layer.heads, layer.kv_heads, layer.kv_heads)
    q, k, v = (torch.randn(length, n * layer.head_dim, generator=generator) for n in widths)
    return q, k, v


def make_cells(layer: Attend, num_layers: int) -> Buffers:
    """Make the cache of a group of such layers."""
    spec = KVSpec("full", layer.kv_heads, layer.head_dim)
    return make_buffers(
        KVLayout((KVLayers(spec, num_layers),)), NUM_BLOCKS, BLOCK_SIZE, torch.float32
    )


class Cache:
    """A KV cache of one buffer, and the blocks of each sequence in it."""

    def __init__(self, layer: Attend, order: Sequence[int], fill: float = 0.0) -> None:
        self.layer = layer
        self.buffers: Buffers = make_cells(layer, 1)
        self.buffers.blocks[0].view(torch.float32).fill_(fill)
        self._free = list(order)
        self.tables: dict[int, list[int]] = {}

    def run(self, work: Sequence[tuple[int, QKV, int, int]]) -> list[Tensor]:
        """Attend from rows start..stop of each named sequence, all in one batch."""
        counts = [stop - start for _, _, start, stop in work]
        for name, _, _, stop in work:
            table = self.tables.setdefault(name, [])
            table += [self._free.pop() for _ in range(-(-stop // BLOCK_SIZE) - len(table))]
        width = max(len(self.tables[name]) for name, *_ in work)
        tables = [self.tables[name] + [0] * (width - len(self.tables[name])) for name, *_ in work]
        positions = [position for _, _, start, stop in work for position in range(start, stop)]
        host = HostBatch(
            np.zeros(sum(counts), np.int32),
            np.array(positions, np.int32),
            np.array([0, *accumulate(counts)], np.int32),
            (np.array(tables, np.int32),),
            np.zeros(0, np.int32),
        )
        q, k, v = (
            torch.cat([qkv[part][start:stop] for _, qkv, start, stop in work]) for part in range(3)
        )
        out = attend(q, k, v, self.layer, TorchBatch.of(host, self.buffers))
        return list(torch.split(out, counts))


FORWARDS, BACKWARDS = range(1, NUM_BLOCKS), range(NUM_BLOCKS - 1, 0, -1)


def alone(layer: Attend, qkv: QKV) -> Tensor:
    """Return the result of the sequence by itself, in one chunk."""
    return Cache(layer, BACKWARDS).run([(0, qkv, 0, len(qkv[0]))])[0]


def formula(layer: Attend, qkv: QKV) -> Tensor:
    """Compute attention by its formula in double precision, one head and one query at a time."""
    q, k, v = (part.double().reshape(len(part), -1, layer.head_dim) for part in qkv)
    out = torch.empty_like(q)
    for head in range(layer.heads):
        kv_head = head * layer.kv_heads // layer.heads
        for at in range(len(q)):
            first = max(0, at - layer.window + 1) if layer.window else 0
            scores = k[first : at + 1, kv_head] @ q[at, head] * layer.scale
            if layer.softcap:
                scores = torch.tanh(scores / layer.softcap) * layer.softcap
            if layer.sinks is not None:
                scores = torch.cat((scores, layer.sinks[head].double()[None]))
            shares = torch.softmax(scores, 0)[: at + 1 - first]
            out[at, head] = shares @ v[first : at + 1, kv_head]
    return out.reshape(len(q), -1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", LENGTHS)
def test_results_equal_the_formula(kind: str, length: int) -> None:
    layer = make_layer(kind)
    qkv = make_sequence(layer, length, seed=length)
    expected = formula(layer, qkv)
    torch.testing.assert_close(alone(layer, qkv).double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("heads", [(4, 2), (5, 1), (3, 3)])
def test_batch_threads_and_placement_change_no_bit(kind: str, heads: tuple[int, int]) -> None:
    layer = make_layer(kind, *heads)
    sequences = [make_sequence(layer, length, seed=length) for length in LENGTHS]
    torch.set_num_threads(1)
    expected = [alone(layer, qkv) for qkv in sequences]
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for order in (FORWARDS, BACKWARDS):
            work = [(name, qkv, 0, len(qkv[0])) for name, qkv in enumerate(sequences)]
            for turned in (work, work[::-1]):
                results = Cache(layer, order).run(turned)
                for (name, *_), result in zip(turned, results, strict=True):
                    assert torch.equal(result, expected[name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunks_change_no_bit(kind: str, chunk: int) -> None:
    """The results depend neither on the chunks of a prompt nor on other sequences."""
    layer = make_layer(kind)
    length = 90 if chunk == 1 else 150
    one, other = make_sequence(layer, length, seed=1), make_sequence(layer, 65, seed=2)
    cache, pieces = Cache(layer, FORWARDS), []
    for number, start in enumerate(range(0, length, chunk)):
        work = [(0, one, start, min(start + chunk, length))]
        if number * 5 < 65:
            work.append((1, other, number * 5, number * 5 + 5))
        pieces.append(cache.run(work)[0])
    assert torch.equal(torch.cat(pieces), alone(layer, one))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("most", [0, 70 * attention.KEY_TILE])
def test_tiles_kept_for_later_layers_change_no_bit(
    kind: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two layers of one batch share the kept tiles, as far as the limit allows keeping any."""
    layer = make_layer(kind)
    other = replace(layer, place=(0, 1))
    qkv = [make_sequence(layer, 150, seed=seed) for seed in (1, 2)]
    expected = [alone(layer, one) for one in qkv]
    monkeypatch.setattr(attention, "MOST_KEPT_CELLS", most)
    buffers = make_cells(layer, 2)
    host = HostBatch(
        np.zeros(150, np.int32),
        np.arange(150, dtype=np.int32),
        np.array([0, 150], np.int32),
        (np.arange(1, 39, dtype=np.int32)[None],),
        np.zeros(0, np.int32),
    )
    batch = TorchBatch.of(host, buffers)
    for _ in range(2):
        results = [attend(*one, at, batch) for one, at in zip(qkv, (layer, other), strict=True)]
        assert all(map(torch.equal, results, expected))
    assert batch.num_kept <= most
    assert bool(batch.tiles) == bool(most)


@pytest.mark.parametrize("kind", KINDS)
def test_nan_of_another_sequence_and_in_unwritten_cells_does_not_spread(kind: str) -> None:
    """Old NaN in the cache and a neighbour that is all NaN change no bit of a sequence."""
    layer = make_layer(kind)
    good = make_sequence(layer, 65, seed=1)
    q, k, v = (torch.full_like(part, torch.nan) for part in make_sequence(layer, 33, seed=2))
    cache = Cache(layer, FORWARDS, fill=torch.nan)
    pieces = []
    for start in range(0, 65, 13):
        at = start // 13 * 6
        results = cache.run([(1, (q, k, v), at, at + 6), (0, good, start, start + 13)])
        assert results[0].isnan().all()
        pieces.append(results[1])
    assert torch.equal(torch.cat(pieces), alone(layer, good))


def test_a_copied_block_reads_as_the_original() -> None:
    """Copies are made in the order given, of all layers' keys and values, and of one group."""
    layer = make_layer("plain")
    one = make_sequence(layer, 30, seed=1)
    backend = TorchBackend()
    group = KVLayers(KVSpec("full", layer.kv_heads, layer.head_dim), 2)
    other = KVLayers(KVSpec("full", 1, layer.head_dim, 8), 1)  # a quarter as large
    backend.prepare(make_model(FULL)[0], KVLayout((group, other)), BLOCK_SIZE)
    backend.make_cache(NUM_BLOCKS)
    buffers = backend._buffers
    assert buffers is not None
    cache = Cache(layer, FORWARDS)
    cache.buffers = buffers
    cache.run([(0, one, 0, 29)])
    pool = buffers.blocks[0]
    originals, spare = cache.tables[0], 3
    second = buffers.layers[0][1].keys  # of a layer that does not run here
    second[originals[1], 2] = 5.0
    fresh = [10 + index for index in range(len(originals))]
    before = pool.clone()
    # The first original is copied by way of a spare block, which is overwritten right afterwards.
    copies = list(zip(originals[1:], fresh[1:], strict=True))
    by_way_of_spare = ((originals[0], spare), (spare, fresh[0]), (originals[1], spare))
    backend.forward(batch_of_copies(tuple((*pair, 0) for pair in (*by_way_of_spare, *copies))))
    assert torch.equal(pool[fresh], before[originals])
    assert torch.equal(pool[spare], before[originals[1]])
    # A block of the other group is a quarter of a page, wherever it is.
    backend.forward(batch_of_copies(((4 * originals[1] + 2, 4 * spare + 1, 1),)))
    quarter = pool.shape[1] // 4
    copied = pool[spare, quarter : 2 * quarter]
    assert torch.equal(copied, before[originals[1], 2 * quarter : 3 * quarter])
    assert torch.equal(pool[spare, 2 * quarter :], before[originals[1]][2 * quarter :])
    cache.tables[1] = fresh
    assert torch.equal(cache.run([(1, one, 29, 30)])[0], alone(layer, one)[29:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_empty_cache_is_zero_and_can_be_written_to(dtype: torch.dtype) -> None:
    buffers = make_buffers(KVLayout((KVLayers(KVSpec("full", 2, 6), 2),)), 3, 4, dtype)
    tensors = [tensor for each in buffers.layers[0] for tensor in (each.keys, each.values)]
    assert [(tensor.shape, tensor.dtype) for tensor in tensors] == [((3, 4, 2, 6), dtype)] * 4
    tensors[0][1, 2] = 1.0
    assert [int(tensor.count_nonzero()) for tensor in tensors] == [12, 0, 0, 0]
    assert int(buffers.blocks[0].view(dtype).count_nonzero()) == 12


def test_an_empty_cache_takes_no_memory_yet() -> None:
    def resident_bytes() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    before = resident_bytes()
    layout = KVLayout((KVLayers(KVSpec("full", 8, 128), 1),))
    buffers = make_buffers(layout, 1024, 16, torch.float32)
    assert buffers.blocks[0].nbytes == 128 << 20
    assert resident_bytes() - before < 16 << 20
