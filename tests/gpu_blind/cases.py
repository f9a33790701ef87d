"""What each kernel is examined with: arguments, a way to compute, and the meaning's result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo.backends.base import KVLayers, KVLayout
from octavo.backends.cuda.batch import DeviceBatch
from octavo.backends.cuda.filters import Filters, host_filters
from octavo.backends.cuda.kernels import copies, draw, gate, norm, paged, rounding
from octavo.backends.cuda.kernels import edges as edge
from octavo.backends.cuda.kernels.attention import CHUNK
from octavo.backends.cuda.sampler import DeviceSampler
from octavo.backends.step import NO_ROWS, HostBatch, SlotSampling
from octavo.backends.torch import attention, eight_bits, ops
from octavo.backends.torch.attention import Buffers, TorchBatch, buffers_in
from octavo.backends.torch.device import HOST
from octavo.backends.torch.footprint import kv_pages
from octavo.backends.torch.sampling.filters import survivors
from octavo.layers import KVSpec, Rope
from octavo.layers.rope import plain
from octavo.program.listing import Attend, Norm
from tests.gpu_blind.case import Case, random_rows, rounded_case
from tests.gpu_blind.homes import Home


def _tolerance(dtype: torch.dtype) -> float:
    """Return two units in the last place, or what sums in another order make of float32."""
    return max(2 * torch.finfo(dtype).eps, 1e-5)


def norm_case(dtype: torch.dtype, name: str, width: int = 96, rows: int = 5, **kind: Any) -> Case:
    """Return a case of norms: some columns of wider rows, as models have them."""
    heads = kind.pop("heads", 1)
    head_width = width // heads
    own = width if kind.get("weight_a_head") else head_width
    x = random_rows(rows, width + 32, seed=1, dtype=dtype)[:, 16 : 16 + width] * 3
    bias = random_rows(own, seed=3, dtype=dtype) if kind.pop("has_bias", False) else None
    shape = (heads, head_width) if kind.get("weight_a_head") else (own,)
    weight = random_rows(own, seed=2, dtype=dtype).view(shape)
    made = Norm(
        weight, bias, 1e-5, kind.pop("offset", 0.0), kind.pop("is_rms", True), heads, **kind
    )
    return Case(
        f"norm {name} {dtype}",
        lambda home: norm.norm(x, made, home),
        ops.norm(x, made),
        _tolerance(dtype),
    )


def add_norm_case(
    dtype: torch.dtype, name: str, width: int = 96, rows: int = 5, **kind: Any
) -> Case:
    """Return a case of sums and their norms, of columns of wider rows; both are one tensor."""
    x, y = (
        random_rows(rows, width + 32, seed=seed, dtype=dtype)[:, 16 : 16 + width] * 3
        for seed in (12, 13)
    )
    bias = random_rows(width, seed=3, dtype=dtype) if kind.pop("has_bias", False) else None
    weight = random_rows(width, seed=2, dtype=dtype)
    made = Norm(weight, bias, 1e-5, kind.pop("offset", 0.0), kind.pop("is_rms", True))
    return Case(
        f"norm of sums, {name} {dtype}",
        lambda home: torch.stack(_sums(home, x, y, made)),
        torch.stack((x + y, ops.norm(x + y, made))),
        _tolerance(dtype),
    )


def _sums(home: Home, x: Tensor, y: Tensor, kind: Norm) -> tuple[Tensor, Tensor]:
    """Return sums and their norms."""
    out = x.new_empty(x.shape)
    return norm.add_norm_into(rounding.Results(out), x, y, kind, home), out


def gate_case(dtype: torch.dtype, activation: str, width: int = 200, rows: int = 3) -> Case:
    both = random_rows(rows, 2 * width, seed=4, dtype=dtype) * 4
    gates, ups = both.chunk(2, 1)
    return Case(
        f"gate {activation} {dtype}",
        lambda home: gate.gate(gates, ups, activation, home),
        ops.gate(gates, ups, activation),
        _tolerance(dtype),
    )


def draw_case(
    name: str,
    size: int = 1500,
    *,
    masked: bool = False,
    filtered: bool = False,
    all_nan: bool = False,
) -> Case:
    """Return a case of draws: greedy and warm rows, one with a NaN, and one that allows nothing."""
    logits = random_rows(5, size, seed=5) * 3
    logits[3, size // 2] = torch.nan
    if all_nan:
        logits[3:] = torch.nan
    temperatures = torch.tensor([0.0, 0.7, 1.3, 1.0, 0.9], dtype=torch.float64)
    keys = torch.randint(
        -(2**62), 2**62, (5, 2), generator=torch.Generator().manual_seed(6), dtype=torch.int64
    )
    masks, filters = None, None
    if masked:
        masks = _words(5, size)
        masks[4] = 0
    if filtered:
        filters = _filters([(0.0, 0, 1.0), (0.0, 3, 0.5), (0.2, 0, 1.0), (0.1, 7, 0.9)] * 2)
        filters = filters.of(slice(5))
    return Case(
        f"draw {name}",
        lambda home: draw.draw(logits, temperatures, keys, masks, filters, home),
        DeviceSampler(HOST)._best(logits, temperatures, keys, masks, filters),
        0.0,
    )


def _words(rows: int, size: int) -> Tensor:
    """Return masks that allow about half of the tokens."""
    words = np.random.default_rng(7).integers(0, 2**32, (rows, -(-size // 32)), np.uint32)
    return torch.from_numpy(words.view(np.int32))


def _filters(each: Sequence[tuple[float, int, float]]) -> Filters:
    """Return filters of rows: min-p, top-k and top-p of each."""
    made = host_filters(
        [
            SlotSampling(NO_ROWS, 0, 1.0, min_p=min_p, top_k=top_k, top_p=top_p)
            for min_p, top_k, top_p in each
        ]
    )
    return Filters(*(torch.from_numpy(array) for array in made))


# Min-p, top-k and top-p of the rows of a case, which meet ties, both zeros, and too few tokens.
FILTERS = [
    *((0.0, 40, 1.0), (0.05, 0, 1.0), (0.0, 0, 0.8), (0.02, 50, 0.9), (0.0, 3, 0.2)),
    *((0.0, 10**6, 1.0), (0.0, 2, 1.0), (0.0, 0, 0.3), (0.0, 0, 1.0), (0.0, 0, 0.4)),
]


def edges_case(name: str, size: int, *, masked: bool = False) -> Case:
    """Return a case of filters: the tokens that the reference's filters keep of each row."""
    logits = random_rows(len(FILTERS), size, seed=17) * 3
    logits[6, : size // 2], logits[6, size // 2 :] = 0.0, -0.0  # more tie than top-k wants
    logits[7, size // 3 :] = 1.0  # the edge of top-p is among equal ones
    logits[3] = logits[3].round()
    logits[0] = -logits[0].abs() - 0.25  # all are negative, and most are left out
    logits[9, : size // 2], logits[9, size // 2 :] = -0.0, 0.0  # all are at the edge of top-p
    temperatures = torch.linspace(0.6, 1.4, len(FILTERS), dtype=torch.float64)
    masks = _words(len(FILTERS), size) if masked else None
    expected = torch.zeros(logits.shape)
    for row, (min_p, top_k, top_p) in enumerate(FILTERS):
        scores = logits[row].double().numpy() / float(temperatures[row])
        if masks is not None:
            bits = np.unpackbits(masks[row].numpy().view(np.uint8), bitorder="little")[:size]
            scores[bits == 0] = -np.inf
        expected[row, survivors(scores, min_p, top_k, top_p)] = 1

    def compute(home: Home) -> Tensor:
        values, last = edge.edges(logits, temperatures, masks, _filters(FILTERS), home)
        ids = torch.arange(size)
        kept = (logits > values[:, None]) | (
            (logits == values[:, None]) & (ids <= last.clamp(max=size)[:, None])
        )
        if masks is not None:
            kept &= ((masks[:, ids // 32] >> (ids % 32)) & 1).bool()
        return kept.float()

    return Case(f"edges {name}", compute, expected, 0.0)


def changes_case(name: str, count: int = 300, size: int = 500) -> Case:
    """Return a case of single logits that bias and penalties change, to the bit."""
    logits = random_rows(3, size, seed=18) * 3
    places = torch.randperm(3 * size, generator=torch.Generator().manual_seed(19))[:count]
    numbers = random_rows(4, count, seed=20)
    numbers[1] = numbers[1].abs() + 0.5
    expected = logits.clone()
    DeviceSampler(HOST)._change_logits(expected, places, numbers)

    def compute(home: Home) -> Tensor:
        found = logits.clone()
        edge.change_logits(found, places, numbers, home)
        return found

    return Case(f"edges after changes, {name}", compute, expected, 0.0)


def copies_case(name: str, block: int = 1500, count: int = 6) -> Case:
    """Return a case of copies of blocks of so many words, some of which depend on others."""
    generator = torch.Generator().manual_seed(14)
    pool = torch.randint(-(2**31), 2**31, (count * block,), generator=generator).int()
    pairs = [(count - 1, 0, block), (count - 1, 1, block), (0, 2, block), (3, 4, block - 8)]
    pairs += [(1, 3, block), (5, 5, block)]
    asked = [copies.Copied(*(4 * n for n in (a * block, b * block, size))) for a, b, size in pairs]
    expected = pool.clone()
    for source, destination, size in pairs:
        begin, end = source * block, destination * block
        expected[end : end + size] = expected[begin : begin + size].clone()

    def compute(home: Home) -> Tensor:
        found = pool.clone()
        copies.copy(found, asked, home)
        return found

    return Case(f"copies {name}", compute, expected, 0.0)


def rounding_case(
    dtype: torch.dtype, name: str, width: int = 200, scale: float | None = None
) -> Case:
    """Return a case of rows that become eight bits, of columns of wider rows; the bits are equal.

    One row has a NaN, one an infinite number, one zeros, and others very large and small numbers.
    """
    x = random_rows(9, width + 32, seed=15, dtype=dtype)[:, 16 : 16 + width]
    x *= torch.tensor([1, 1, 1, 0, 1e4, 1e-4, 3e-7, 300, 0.02], dtype=dtype)[:, None]
    x[1, 7], x[2, 3] = torch.nan, -torch.inf
    codes, scales = eight_bits.rounded(x, scale)

    def compute(home: Home) -> Tensor:
        return _bytes(*rounding.rounded(home, x, scale))

    return Case(f"rounding {name} {dtype}", compute, _bytes(codes, scales), 0.0)


def _bytes(codes: Tensor, scales: Tensor) -> Tensor:
    return torch.cat((codes.view(torch.uint8), scales.view(torch.uint8)), 1)


class Attention(NamedTuple):
    """The shape of an attention and its batch."""

    heads: int = 4
    kv_heads: int = 2
    dim: int = 32
    window: int = 0
    softcap: float = 0.0
    has_sinks: bool = False
    rope: Rope | None = None
    norm_offset: float | None = None  # of norms of queries and keys, if there are any
    block_size: int = 16
    is_short: bool = False  # keys and values have eight bits
    rounds: bool = False  # results become eight bits for a product
    # For each sequence: how many positions it has, and how many of the last are rows of the step.
    sequences: tuple[tuple[int, int], ...] = ((1, 1), (700, 1), (40, 9), (33, 33), (130, 1))


def attention_case(dtype: torch.dtype, name: str, shape: Attention | None = None) -> Case:
    """Return a case of paged attention, over a cache whose unused cells are NaN."""
    shape = shape or Attention()
    layer = Attend(
        shape.heads,
        shape.kv_heads,
        shape.dim,
        shape.dim**-0.5,
        shape.softcap,
        shape.window,
        random_rows(shape.heads, seed=9, dtype=dtype) if shape.has_sinks else None,
        (0, 0),
        shape.rope,
        *_norms_of(shape, dtype),
    )
    host = _batch_of(shape)
    rows = len(host.positions)
    q, k, v = _parts(
        random_rows(rows, (shape.heads + 2 * shape.kv_heads) * shape.dim, seed=8, dtype=dtype),
        shape,
    )

    reference = TorchBatch.of(host, _cache(shape, host, dtype, HOST))
    turns = None if shape.rope is None else ops.rope_tables(reference.positions, shape.rope, dtype)

    def into(home: Home, results: rounding.Results) -> None:
        batch = _device_batch(host, _cache(shape, host, dtype, home))
        paged.attend_into(results, q, k, v, layer, batch, turns)

    def compute(home: Home) -> Tensor:
        out = q.new_empty(rows, shape.heads * shape.dim)
        into(home, rounding.Results(out))
        return out

    asked, known = q, k
    if layer.q_norm is not None and layer.k_norm is not None:
        asked, known = ops.norm(q, layer.q_norm), ops.norm(k, layer.k_norm)
    if shape.rope is not None and turns is not None:
        asked = ops.rotate(asked, turns, shape.rope, shape.dim)
        known = ops.rotate(known, turns, shape.rope, shape.dim)
    expected = attention.attend(asked, known, v, layer, reference)
    if shape.rounds:
        return rounded_case(f"attention {name} {dtype}", into, expected, None, False)
    return Case(
        f"attention {name} {dtype}",
        compute,
        expected,
        4 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5,
    )


def _norms_of(shape: Attention, dtype: torch.dtype) -> tuple[Norm | None, Norm | None]:
    if shape.norm_offset is None:
        return None, None
    weights = random_rows(2, shape.dim, seed=11, dtype=dtype)
    counts = shape.heads, shape.kv_heads
    q, k = (
        Norm(weight, None, 1e-5, shape.norm_offset, True, heads)
        for weight, heads in zip(weights, counts, strict=True)
    )
    return q, k


def _parts(rows: Tensor, shape: Attention) -> tuple[Tensor, Tensor, Tensor]:
    """Return the columns of queries, keys and values."""
    keys, values = shape.heads * shape.dim, (shape.heads + shape.kv_heads) * shape.dim
    return rows[:, :keys], rows[:, keys:values], rows[:, values:]


def _batch_of(shape: Attention) -> HostBatch:
    """Return a batch whose blocks lie in a random order."""
    lengths = [length for length, _ in shape.sequences]
    counts = [count for _, count in shape.sequences]
    most = max(-(-length // shape.block_size) for length in lengths)
    blocks = np.random.default_rng(10).permutation(len(lengths) * most).astype(np.int32)
    positions = [np.arange(n - count, n, dtype=np.int32) for n, count in shape.sequences]
    starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    return HostBatch(
        np.zeros(sum(counts), np.int32),
        np.concatenate(positions),
        starts,
        (blocks.reshape(len(lengths), most),),
        starts[1:] - 1,
        slots=np.arange(len(lengths), dtype=np.int32),
    )


def _device_batch(host: HostBatch, cache: Buffers) -> DeviceBatch:
    batch = DeviceBatch.of(host, cache)
    assert isinstance(batch, DeviceBatch)
    return batch


def _cache(shape: Attention, host: HostBatch, dtype: torch.dtype, home: Any) -> Buffers:
    """Return a cache with keys and values at the positions before the rows, and NaN elsewhere."""
    num_blocks = host.tables[0].size
    layout = KVLayout((KVLayers(KVSpec("full", shape.kv_heads, shape.dim), 1),))
    kind = _NAMES[dtype]
    pages = kv_pages(layout, shape.block_size, kind, has_short_kv=shape.is_short)
    nothing = torch.full((num_blocks * pages.page_bytes,), 0xFF, dtype=torch.uint8)  # is NaN
    buffers = buffers_in(
        *(nothing, layout, pages, shape.block_size, dtype, home), has_short_kv=shape.is_short
    )
    ((cells,),) = buffers.layers
    for sequence, (length, count) in enumerate(shape.sequences):
        kept = random_rows(2, length, shape.kv_heads, shape.dim, seed=20 + sequence, dtype=dtype)
        for position in range(length - count):
            block = int(host.tables[0][sequence, position // shape.block_size])
            place = block, position % shape.block_size
            if cells.key_exponents is None or cells.value_exponents is None:
                cells.keys[place], cells.values[place] = kept[:, position]
                continue
            found = eight_bits.exponents_of(kept[:, position])
            codes = eight_bits.codes_of(kept[:, position], found).view(torch.uint8)
            cells.key_exponents[place], cells.value_exponents[place] = found
            cells.keys[place], cells.values[place] = codes
    return buffers


def same_row_twice(
    dtype: torch.dtype, home: Home, shape: Attention | None = None, chunks: int = 3
) -> tuple[Tensor, Tensor]:
    """Return the attention of one row: the last of a prompt, and computed anew by itself.

    Its chunks are steps of one program in the first case, and programs of their own in the second.
    """
    length, count = (chunks - 1) * CHUNK + 76, 7
    shape = (shape or Attention())._replace(sequences=((length, count), (40, 1)))
    host, alone = _batch_of(shape), _batch_of(shape._replace(sequences=((length, 1), (40, 1))))
    layer = Attend(shape.heads, shape.kv_heads, shape.dim, shape.dim**-0.5, 0.0, 0, None, (0, 0))
    cache = _cache(shape, host, dtype, home)
    rows = random_rows(
        len(host.positions), (shape.heads + 2 * shape.kv_heads) * shape.dim, seed=8, dtype=dtype
    )
    whole = paged.attend(*_parts(rows, shape), layer, _device_batch(host, cache))
    again = paged.attend(*_parts(rows[count - 1 :], shape), layer, _device_batch(alone, cache))
    return whole[count - 1], again[0]


def chunks_case() -> Case:
    """Return rows with more chunks than programs, if there is one program for a head."""
    return attention_case(BF16, "of many chunks", Attention(sequences=((1100, 1), (40, 1))))


ROPE = Rope(plain(32, 1e4))
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
_NAMES = {BF16: "bfloat16", FP16: "float16", FP32: "float32"}


def small_cases() -> list[Case]:
    """Return cases that take a second or so each, wherever they are computed."""
    made = [
        draw_case("plain"),
        copies_case("of blocks"),
        draw_case("masked", masked=True),
        draw_case("of failed rows, in three full parts", 3 * 1024, all_nan=True),
        draw_case("filtered and masked", masked=True, filtered=True),
        changes_case("some"),
        edges_case("plain", 500),
        edges_case("masked", 1100, masked=True),
    ]
    for dtype in (BF16, FP16, FP32):
        made += [
            norm_case(dtype, "rms"),
            norm_case(dtype, "rms with an offset", offset=1.0),
            norm_case(dtype, "of layers", is_rms=False, has_bias=True),
            norm_case(dtype, "of heads", heads=3),
            add_norm_case(dtype, "rms"),
            add_norm_case(dtype, "of layers", is_rms=False, has_bias=True),
            *(gate_case(dtype, each) for each in ("Silu", "GeluTanh")),
            attention_case(dtype, "full"),
            rounding_case(dtype, "of each row"),
            rounding_case(dtype, "by one scale", scale=0.013),
            attention_case(dtype, "of eight bits", Attention(is_short=True)),
        ]
    made += [
        norm_case(BF16, "of heads with weights", heads=3, weight_a_head=True),
        norm_case(BF16, "without a bias", is_rms=False),
        add_norm_case(BF16, "rms with an offset", offset=1.0),
        *(gate_case(BF16, each) for each in ("GeluErf", "Relu", "Relu2", "ClampedSwiglu")),
        attention_case(BF16, "windowed", Attention(window=24)),
        attention_case(BF16, "capped", Attention(softcap=5.0)),
        attention_case(BF16, "with sinks", Attention(has_sinks=True, window=100)),
        attention_case(FP32, "of narrow heads", Attention(dim=8)),
        attention_case(BF16, "of odd heads", Attention(dim=24, heads=6, kv_heads=2)),
        attention_case(BF16, "with rotations", Attention(rope=ROPE)),
        attention_case(BF16, "with norms", Attention(rope=ROPE, norm_offset=0.0)),
        attention_case(
            FP32,
            "with other norms and rotations",
            Attention(rope=Rope(plain(16, 1e4), interleaved=True), norm_offset=1.0, dim=24),
        ),
        attention_case(
            BF16,
            "of eight bits, windowed, with all else",
            Attention(
                is_short=True, window=100, has_sinks=True, rope=ROPE, norm_offset=0.0, softcap=5.0
            ),
        ),
        attention_case(
            BF16, "of eight bits, odd heads", Attention(is_short=True, dim=24, block_size=8)
        ),
        attention_case(BF16, "of one head", Attention(heads=1, kv_heads=1, block_size=8)),
    ]
    return made
