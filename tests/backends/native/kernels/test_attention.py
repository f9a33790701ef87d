"""The native attention kernels: correct to derived bounds, with the same bits on every path.

Every tier the processor runs, against attention in float64 over what the cache holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest

from octavo.backends.native import _native
from tests.backends.native import _native_test
from tests.backends.native.kernels.kept_numbers import (
    FORMATS,
    Doubles,
    Floats,
    kept,
    mix_block,
    mixed,
)

SPLIT = 512
BF16_ERROR = 2.0**-8  # of rounding to bf16, either way; half a unit of 8 bits is 2^-9
FP32_ERROR = 2.0**-23
# The mean error that a format causes, in parts of the mean output, for rows like those of models.
ERRORS = {"bf16": 0.006, "int8": 0.04, "e4m3": 0.08, "e5m2": 0.16, "int4": 0.35}


@pytest.fixture(params=_native_test.tiers())
def tier(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@dataclass(frozen=True)
class Shape:
    """The shape of one layer's attention."""

    heads: int = 3
    kv_heads: int = 1
    head_dim: int = 16
    softcap: float = 0.0
    window: int = 0
    sinks: bool = False
    block_size: int = 16
    latent: int = 0  # the last numbers of a key that are its value; 0: values are apart

    @property
    def value_dim(self) -> int:
        return self.latent or self.head_dim

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5


@dataclass
class Sequence:
    """The rows of a sequence; the first `cached` are in the cache before the step."""

    q: Floats
    k: Floats
    v: Floats
    cached: int = 0

    def __len__(self) -> int:
        return len(self.q)


def make_sequence(shape: Shape, length: int, seed: int = 0, cached: int = 0) -> Sequence:
    generator = np.random.default_rng(seed)
    q, k, v = (
        generator.normal(0, 1, (length, heads * shape.head_dim)).astype(np.float32)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    )
    return Sequence(2 * q, k, k[:, -shape.latent :].copy() if shape.latent else v, cached)


@dataclass
class World:
    """A cache of one tier and format, whose unused cells hold values that must not be read."""

    tier: str
    kind: str
    shape: Shape
    num_blocks: int = 0
    poison: bool = True
    seed: int = 0
    planned: int = 1
    threads: int = 1
    num_shared: int = 0  # leading blocks that the sequences have in common, as far as they go
    strays: tuple[int, ...] = ()  # those that have only the first 512 positions in common
    num_items: int = 0  # of the last plan
    partial_floats: int = 0  # of the last plan
    run_items: int = 0  # that a thread takes at a time, and ahead

    def run(self, sequences: list[Sequence]) -> list[Floats]:
        """Run one step, and return the output of each sequence's rows that are not cached."""
        shape = self.shape
        needed = [-(-len(sequence) // shape.block_size) for sequence in sequences]
        num_blocks = sum(needed) + 3
        cache = _native_test.TestCache(
            self.tier,
            self.kind,
            num_blocks,
            shape.block_size,
            shape.kv_heads,
            shape.head_dim,
            shape.latent,
        )
        if self.poison:
            cache.cells()[:] = 0x7F if self.kind == "int8" else 0xFF  # a NaN as a float
            cache.scales()[:] = np.nan
        order = np.random.default_rng(self.seed).permutation(num_blocks).astype(np.int32)
        edges = np.cumsum([0, *needed])
        tables = [order[a:b].copy() for a, b in pairwise(edges)]
        longest = max(tables, key=len)
        for index, table in enumerate(tables):
            count = SPLIT // shape.block_size if index in self.strays else self.num_shared
            table[:count] = longest[: min(count, len(table))]
        for sequence, table in zip(sequences, tables, strict=True):
            cache.write(sequence.k, sequence.v, 0, len(sequence), 0, table)
        rows = [len(sequence) - sequence.cached for sequence in sequences]
        starts = np.cumsum([0, *rows]).tolist()
        q = np.concatenate([sequence.q[sequence.cached :] for sequence in sequences])
        out = np.full((len(q), shape.heads * shape.value_dim), np.nan, np.float32)
        self.num_items, self.partial_floats, self.run_items = _native_test.attend(
            cache, q, out, shape.heads, shape.scale, shape.softcap, shape.window,
            self.sinks(), starts[:-1], rows, [sequence.cached for sequence in sequences], tables,
            self.planned, self.threads,
        )  # fmt: skip
        return [out[a:b] for a, b in pairwise(starts)]

    def sinks(self) -> Floats | None:
        if not self.shape.sinks:
            return None
        return np.linspace(-1, 4, self.shape.heads).astype(np.float32)


def reference(world: World, sequence: Sequence) -> tuple[Doubles, ...]:
    """Return the exact output of the new rows over the cache, and a kernel's allowed error."""
    shape, length = world.shape, len(sequence)
    size, group = shape.head_dim, shape.heads // shape.kv_heads
    new = np.arange(sequence.cached, length)
    q = sequence.q[new].astype(np.float64).reshape(len(new), shape.heads, size)
    keys = sequence.k
    if world.kind == "int4":  # products are the same, and so is what is kept of values
        q, keys = mixed(q, size) / mix_block(size), mixed(keys, size).astype(np.float32)
    k = kept(world.kind, keys, size).reshape(length, shape.kv_heads, size)
    v = k[:, :, -shape.latent :]
    if not shape.latent:
        v = kept(world.kind, sequence.v, size).reshape(length, shape.kv_heads, size)
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    q, k, v = (x.transpose(1, 0, 2) for x in (q, k, v))
    scores = q @ k.transpose(0, 2, 1) * shape.scale
    sizes = np.abs(q) @ np.abs(k).transpose(0, 2, 1) * shape.scale
    if shape.softcap:
        scores = np.tanh(scores / shape.softcap) * shape.softcap
    at = np.arange(length)
    seen = at <= new[:, None]
    if shape.window:
        seen &= at > new[:, None] - shape.window
    scores = np.where(seen, scores, -np.inf)
    most = scores.max(axis=2, keepdims=True)
    sink = world.sinks()
    if sink is not None:
        most = np.maximum(most, sink[:, None, None])
    weights = np.exp(scores - most)
    total = weights.sum(axis=2, keepdims=True)
    if sink is not None:
        total += np.exp(sink[:, None, None] - most)
    weights /= total
    out = weights @ v
    # A score's error: of each product's rounding, of q's, of the exponential's argument.
    rounded = 0.0 if world.kind == "f32" else BF16_ERROR
    error = (rounded + size * FP32_ERROR) * sizes + 16 * FP32_ERROR * (
        1 + np.abs(np.where(seen, scores, 0)) + shape.softcap
    )
    worst = np.where(seen, error, 0).max(axis=2)
    # A weight's relative error is a score's twice (over and under the line), its own rounding's,
    # and the sums'.
    relative = 2 * worst + rounded + (length + 64) * FP32_ERROR
    bound = relative[:, :, None] * (weights @ np.abs(v)) + 1e-30
    return tuple(x.transpose(1, 0, 2).reshape(len(new), -1) for x in (out, bound))


def check(world: World, sequence: Sequence) -> None:
    (out,) = world.run([sequence])
    exact, bound = reference(world, sequence)
    assert (np.abs(out - exact) / bound).max() <= 1.0


@pytest.mark.matrix
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("head_dim", [8, 16, 24, 32, 64, 80, 96, 112, 128, 192, 256])
def test_head_sizes(tier: str, kind: str, head_dim: int) -> None:
    shape = Shape(heads=2, head_dim=head_dim)
    check(World(tier, kind, shape), make_sequence(shape, 41, head_dim))


@pytest.mark.matrix
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (9, 3), (14, 2), (16, 1), (5, 1)])
def test_groups_of_heads(tier: str, kind: str, heads: int, kv_heads: int) -> None:
    shape = Shape(heads=heads, kv_heads=kv_heads, block_size=32)
    check(World(tier, kind, shape), make_sequence(shape, 35, heads))


FEATURES = {
    "plain": Shape(),
    "window": Shape(window=37),
    "window of one": Shape(window=1),
    "wide window": Shape(window=600),
    "softcap": Shape(softcap=3.0),
    "sinks": Shape(sinks=True),
    "latent": Shape(heads=6, head_dim=72, latent=64),
    "latent of odd size": Shape(heads=13, head_dim=40, latent=24, block_size=32),
    "everything": Shape(window=100, softcap=5.0, sinks=True, block_size=48, head_dim=24),
}
OF_LATENTS = [kind for kind in FORMATS if kind != "int4"]
CASES = [
    (kind, feature)
    for kind in FORMATS
    for feature in FEATURES
    if kind in OF_LATENTS or not FEATURES[feature].latent
]


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "feature"), CASES)
@pytest.mark.parametrize("length", [1, 17, 515, 1300])
def test_features_over_splits(tier: str, kind: str, feature: str, length: int) -> None:
    shape = FEATURES[feature]
    sequence = make_sequence(shape, length, length)
    sequence.cached = max(0, length - 40)
    check(World(tier, kind, shape), sequence)


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "feature"), CASES)
def test_bits_do_not_depend_on_chunks_neighbours_blocks_or_plans(
    tier: str, kind: str, feature: str
) -> None:
    """Single rows, chunks of any size, batches and several threads give one result."""
    shape = FEATURES[feature]
    length = 1040 if tier != "scalar" else 540
    world = World(tier, kind, shape)
    sequence = make_sequence(shape, length, 3)
    begin = SPLIT - 27
    (whole,) = world.run([replace(sequence, cached=begin)])
    generator = np.random.default_rng(4)
    at = begin
    while at < length:
        stop = min(length, at + int(generator.choice([1, 1, 2, 3, 5, 15, 16, 17, 33, 100])))
        part = Sequence(sequence.q[:stop], sequence.k[:stop], sequence.v[:stop], at)
        others = [
            make_sequence(shape, int(generator.integers(1, 60)), 5, cached=0)
            for _ in range(int(generator.integers(0, 3)))
        ]
        place = int(generator.integers(0, len(others) + 1))
        varied = replace(
            world,
            seed=at,
            planned=int(generator.integers(1, 9)),
            threads=int(generator.integers(1, 3)),
            poison=bool(generator.integers(0, 2)),
        )
        out = varied.run([*others[:place], part, *others[place:]])[place]
        assert np.array_equal(out.view(np.uint32), whole[at - begin : stop - begin].view(np.uint32))
        at = stop


@pytest.mark.matrix
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("window", [0, 5])
def test_what_a_query_does_not_see_may_be_anything(
    tier: str, kind: str, bad: float, window: int
) -> None:
    """Invisible rows of the same step may hold NaN too: a bad row affects none before it."""
    shape = Shape(heads=4, kv_heads=2, head_dim=24, window=window)
    world = World(tier, kind, shape)
    good = make_sequence(shape, 30, 6)
    (expected,) = world.run([good])
    for wrong in ("k", "v"):
        spoilt = make_sequence(shape, 30, 6)
        getattr(spoilt, wrong)[20, 3] = bad
        (out,) = world.run([spoilt])
        blind = np.arange(30) < 20
        if window:
            blind |= np.arange(30) >= 20 + window
        assert np.array_equal(out[blind].view(np.uint32), expected[blind].view(np.uint32))
        if wrong == "k" and kind in ("f32", "bf16") and not np.isnan(bad):
            continue  # an infinite score may be -inf, and its weight rightly zero
        first_head = slice(0, 2 * shape.head_dim)  # of the KV head that is wrong
        assert not np.isfinite(out[~blind][:, first_head]).all(axis=1).any()


@pytest.mark.matrix
@pytest.mark.parametrize("kind", OF_LATENTS)
@pytest.mark.parametrize("column", [3, 50])
@pytest.mark.parametrize("heads", [4, 16])
def test_latent_rows_that_a_query_does_not_see_may_be_anything(
    tier: str, kind: str, column: int, heads: int
) -> None:
    """A bad number in a key is one of its value too, unless it is in the part that rotates."""
    shape = Shape(heads=heads, head_dim=72, latent=64)
    world = World(tier, kind, shape)
    good = make_sequence(shape, 30, 6)
    (expected,) = world.run([good])
    good.k[20, column] = np.nan
    (out,) = world.run([good])
    assert np.array_equal(out[:20].view(np.uint32), expected[:20].view(np.uint32))
    assert not np.isfinite(out[20:]).all(axis=1).any()


@pytest.mark.matrix
@pytest.mark.parametrize("kind", OF_LATENTS)
@pytest.mark.parametrize("heads", [1, 16])
def test_the_largest_latent_rows(tier: str, kind: str, heads: int) -> None:
    """DeepSeek's rows have 576 numbers, of which 512 are the value."""
    shape = Shape(heads=heads, head_dim=576, latent=512)
    check(World(tier, kind, shape), make_sequence(shape, 530 if heads == 1 else 40, 9, cached=20))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_plan_for_many_threads_cuts_long_sequences(tier: str, kind: str) -> None:
    shape = Shape(block_size=64)
    world = World(tier, kind, shape)
    sequences = [make_sequence(shape, 2100, 7, cached=2099), make_sequence(shape, 20, 8)]
    alone = [world.run([sequence])[0] for sequence in sequences]
    for planned, threads in ((1, 2), (4, 1), (4, 2), (64, 3)):
        outs = replace(world, planned=planned, threads=threads).run(sequences)
        for out, expected in zip(outs, alone, strict=True):
            assert np.array_equal(out.view(np.uint32), expected.view(np.uint32))


@pytest.mark.matrix
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("window", [0, 7])
def test_many_sequences_are_taken_a_few_at_a_time(tier: str, kind: str, window: int) -> None:
    """Threads take the heads of a sequence together, and claim the next ones ahead."""
    shape = Shape(heads=6, kv_heads=3, head_dim=16, window=window)
    lengths = [20 + index * 7 % 20 for index in range(80)]
    sequences = [
        make_sequence(shape, length, 30 + index, cached=length - 1)
        for index, length in enumerate(lengths)
    ]
    alone = [World(tier, kind, shape).run([sequence])[0] for sequence in sequences]
    for threads in (1, 2, 3):
        world = World(tier, kind, shape, planned=threads, threads=threads)
        for out, expected in zip(world.run(sequences), alone, strict=True):
            assert np.array_equal(out.view(np.uint32), expected.view(np.uint32))
        assert world.run_items == 3


@pytest.mark.parametrize(
    ("longest", "others", "taken"), [(100, 31, 8), (100, 7, 1), (16_384, 31, 0)]
)
def test_items_are_taken_ahead_only_where_all_are_short(
    longest: int, others: int, taken: int
) -> None:
    """A thread that took all heads of a long sequence would still work when others have ended."""
    shape = Shape(heads=8, kv_heads=8, head_dim=8)
    lengths = [longest] + [100] * others
    sequences = [make_sequence(shape, length, 5, cached=length - 1) for length in lengths]
    world = World(_native.tiers()[-1], "bf16", shape, planned=2, threads=2)
    world.run(sequences)
    assert world.run_items == taken


@pytest.mark.parametrize(("planned", "num_items"), [(1, 32), (8, 32), (16, 32), (24, 112)])
def test_units_that_balance_are_not_cut(planned: int, num_items: int) -> None:
    """Each cut costs time; 32 units of a prompt's chunk divide evenly among 8 or 16 threads."""
    shape = Shape(heads=4, kv_heads=1, head_dim=8)
    chunk = make_sequence(shape, 8192, 3, cached=8192 - 512)
    world = World(_native.tiers()[-1], "bf16", shape, planned=planned)
    world.run([chunk])
    assert world.num_items == num_items
    assert (world.partial_floats > 0) == (num_items > 32)


def with_a_prefix(
    shape: Shape, num_shared: int, lengths: list[int], rows: list[int]
) -> list[Sequence]:
    """Make sequences that begin with the same keys and values; only their last rows attend."""
    longest = make_sequence(shape, max(lengths), 11)
    sequences = []
    for seed, (length, count) in enumerate(zip(lengths, rows, strict=True)):
        sequence = make_sequence(shape, length, 20 + seed, cached=length - count)
        sequence.k[:num_shared] = longest.k[: min(num_shared, length)]
        sequence.v[:num_shared] = longest.v[: min(num_shared, length)]
        sequences.append(sequence)
    return sequences


@pytest.mark.matrix
@pytest.mark.parametrize(("kind", "feature"), CASES)
def test_a_prefix_is_read_together_to_the_same_bits(tier: str, kind: str, feature: str) -> None:
    """Sequences have one row, a few, or too many to read together; one shares less."""
    shape = FEATURES[feature]
    num_shared = SPLIT + 64 if tier == "scalar" else 2 * SPLIT + 64
    lengths = [num_shared + extra for extra in (1, 40, 3, 2, 700, 20, 9)]
    lengths[3] = SPLIT + 9
    sequences = with_a_prefix(shape, num_shared, lengths, [1, 1, 3, 1, 2, 19, 4])
    alone = [World(tier, kind, shape).run([sequence])[0] for sequence in sequences]
    for planned, threads in ((1, 1), (2, 2), (5, 3)):
        world = World(tier, kind, shape, planned=planned, threads=threads)
        world.num_shared = num_shared // shape.block_size
        for out, expected in zip(world.run(sequences), alone, strict=True):
            assert np.array_equal(out.view(np.uint32), expected.view(np.uint32))
        is_shared = shape.window == 0 and shape.block_size <= SPLIT
        if planned == 1:  # then nothing else is summed in parts
            assert (world.partial_floats > 0) == is_shared


@pytest.mark.parametrize(("planned", "together"), [(1, 1), (2, 2), (4, 4), (64, 4)])
def test_few_heads_with_a_prefix_are_divided_among_threads(planned: int, together: int) -> None:
    """One item for all rows would leave the other threads without work."""
    shape = Shape(heads=8, kv_heads=1, head_dim=8)
    sequences = with_a_prefix(shape, SPLIT, [SPLIT + 60] * 4, [1] * 4)
    world = World(_native.tiers()[-1], "bf16", shape, num_shared=SPLIT // 16, planned=planned)
    world.run(sequences)
    assert world.num_items == 4 + together


def test_sums_of_shared_prefixes_are_bounded() -> None:
    """A long sequence counts with its own length, also if it was the first of its branch."""
    shape, length, rows = Shape(heads=256, kv_heads=1, head_dim=512), 8192, 4
    blocks = length // 16
    cache = _native_test.TestCache(
        _native.tiers()[-1], "bf16", 4 * (blocks + 2), 16, shape.kv_heads, shape.head_dim
    )
    tables = []
    for first in range(0, 4 * (blocks + 2), blocks + 2):
        tables.append(np.arange(first, first + blocks, dtype=np.int32))
        own = np.array([first + blocks, first + blocks + 1], np.int32)
        tables.append(np.concatenate([tables[-1][:32], own]))
    q = np.zeros((len(tables) * rows, shape.heads * shape.head_dim), np.float32)
    _, floats, _ = _native_test.attend(
        cache, q, np.zeros_like(q), shape.heads, 1.0, 0.0, 0, None,
        list(range(0, len(q), rows)), [rows] * len(tables), [length - rows, SPLIT] * 4, tables,
        1, 1, 1,
    )  # fmt: skip
    assert 0 < floats * 4 <= 64 << 20


def test_rows_that_share_a_prefix_are_few_items() -> None:
    """The rows of 20 sequences take two items for each split that they share."""
    shape = Shape(heads=6, kv_heads=2)
    sequences = with_a_prefix(shape, 1024, [1030] * 20, [1] * 20)
    world = World(_native.tiers()[-1], "bf16", shape, num_shared=64)
    world.run(sequences)
    own, together = 20 * 2, 2 * 2 * 2
    assert world.num_items == own + together


def test_a_sequence_that_shares_less_does_not_keep_others_from_sharing_more() -> None:
    """The first sequence shares only the first split; the others read the next ones together."""
    shape = Shape()
    sequences = with_a_prefix(shape, 1024, [1030, *[1050] * 5], [1] * 6)
    generator = np.random.default_rng(5)
    for each in (sequences[0].k, sequences[0].v):
        each[SPLIT:] = generator.normal(0, 1, each[SPLIT:].shape)
    world = World(_native.tiers()[-1], "bf16", shape, num_shared=64, strays=(0,))
    alone = [replace(world, num_shared=0, strays=()).run([each])[0] for each in sequences]
    for out, expected in zip(world.run(sequences), alone, strict=True):
        assert np.array_equal(out.view(np.uint32), expected.view(np.uint32))
    assert world.num_items == 6 + 2


def rows_like_a_models(shape: Shape, length: int) -> tuple[Floats, Floats]:
    """Make keys of which two numbers are always large, as those of models are, and values."""
    generator = np.random.default_rng(5)
    width = shape.kv_heads * shape.head_dim
    keys = generator.normal(0, 1, (length, width))
    keys[:, 3] += 9
    keys[:, 40] -= 6
    return keys.astype(np.float32), generator.normal(0, 1, (length, width)).astype(np.float32)


@pytest.mark.parametrize("kind", ERRORS)
def test_outputs_are_near_those_over_exact_keys_and_values(kind: str) -> None:
    shape = Shape(heads=4, kv_heads=1, head_dim=64)
    sequence = make_sequence(shape, 600, 2, cached=560)
    sequence.k, sequence.v = rows_like_a_models(shape, 600)
    (exact,) = World("scalar", "f32", shape).run([sequence])
    (out,) = World("scalar", kind, shape).run([sequence])
    error = np.abs(out - exact).mean() / np.abs(exact).mean()
    assert ERRORS[kind] / 3 < error < ERRORS[kind]
