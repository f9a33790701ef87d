"""Cases of every shader at awkward sizes: each compares the device with the meaning."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.vulkan.device import Device, Memory
from benchmarks.vulkan.draws import ERROR, Drawer
from benchmarks.vulkan.sources import shader_of_noise
from octavo.backends.base import Floats
from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch.sampling import noise
from octavo.layers import Attention, Module, RMSNorm, Rope
from octavo.layers.rope import plain
from octavo.program.listing import Value
from octavo.program.recorder import Recorder
from tests.vulkan.both import (
    BATCH,
    Both,
    Shape,
    assert_near,
    floats,
    rows_batch,
    sequences_batch,
    stored,
)

SUMS = 1e-5  # of the largest number: sums of float32 in another order
EXACT = 0.0
NEAR = 1e-6  # a few roundings
WANTED = (4, 0, 2)  # rows, in another order than theirs, and not all


def _looked_up(maker: Any, recorder: Recorder, x: Value) -> Value:
    return x


def lookup(device: Device, name: str, inputs: int, most_words: int | None = None) -> None:
    """Check rows of a table by tokens, the last one and repeated ones among them."""
    table = stored(name, floats(11, inputs))
    both = Both(device, table, _looked_up, most_words=most_words)
    tolerance = NEAR if name == "Q4_1" else EXACT  # a minimum is added to a product
    both.check(rows_batch([10, 0, 3, 3, 7]), tolerance)
    both.check(rows_batch([1, 2, 9, 10, 0], WANTED), tolerance)


def product(
    device: Device, name: str, inputs: int, outputs: int, rows: int, most_words: int | None = None
) -> None:
    """Check a product with columns from the middle of wider rows."""
    matrix = stored(name, floats(outputs, inputs, seed=1))
    both = Both(device, wide_rows(inputs), partial(multiplied, [matrix]), most_words=most_words)
    both.check(rows_batch(range(rows)), SUMS)


def wide_rows(inputs: int) -> StoredRows:
    """Return rows with NaN in five columns on either side of those that are multiplied."""
    rows = np.full((12, inputs + 10), np.nan, np.float32)
    rows[:, 5:-5] = floats(12, inputs)
    return StoredRows.of(rows)


def multiplied(parts: list[StoredRows], maker: Any, recorder: Recorder, x: Value) -> Value:
    """Record a product with the columns between the outer five."""
    _, middle, _ = recorder.split(x, (5, x.width - 10, 5))
    return recorder.linear(middle, maker.matrix(parts, Module()), None)


def mixed_product(device: Device) -> None:
    """Check a matrix whose rows have three formats, in arrays of a few rows each."""
    names, counts = ("Q4_1", "Q8_0", "BF16"), (7, 5, 6)
    parts = [
        stored(name, floats(count, 64, seed=count))
        for name, count in zip(names, counts, strict=True)
    ]
    both = Both(device, wide_rows(64), partial(multiplied, parts), most_words=64 * 12)
    both.check(rows_batch(range(6)), SUMS)


def norm(device: Device, width: int, heads: int, offset: float) -> None:
    """Check norms of rows, of large numbers and of such that epsilon decides."""
    rows = floats(6, width * heads)
    rows[1] *= 1e-3
    rows[2] *= 1e4
    rows[3] = 0.0

    def build(maker: Any, recorder: Recorder, x: Value) -> Value:
        weight = maker.parameter(floats(width, seed=2))
        if heads == 1:
            return recorder.rms_norm(x, weight, 1e-5, offset)
        kind = RMSNorm(width, 1e-5, offset=offset)
        kind.weight = weight
        return recorder.head_norm(x, kind, heads)

    both = Both(device, StoredRows.of(rows), build)
    for row in range(6):  # alone, so that each has a tolerance of its own
        both.check(rows_batch([row]), NEAR)
    both.check(rows_batch(range(6), WANTED), NEAR)


def gate(device: Device, width: int) -> None:
    """Check SiLU and product, of numbers whose exponential is too large too."""
    rows = floats(6, 2 * width)
    rows[:, 0] = [0.0, 90.0, -90.0, -700.0, 3e38, -3e38]
    rows[:, width] = [1.0, 2.0, 3.0, 4.0, 0.5, 1e-3]

    def build(maker: Any, recorder: Recorder, x: Value) -> Value:
        both, _ = recorder.split(x, (2 * width, 3))
        return recorder.gated_activation(both, "silu")

    both = Both(device, StoredRows.of(np.pad(rows, ((0, 0), (0, 3)))), build)
    for row in range(6):
        both.check(rows_batch([row]), NEAR)
    both.check(rows_batch(range(6), WANTED), NEAR)


def add(device: Device, width: int) -> None:
    """Check the sum of two parts of a row, to the bit."""
    rows = StoredRows.of(floats(6, 2 * width + 3))

    def build(maker: Any, recorder: Recorder, x: Value) -> Value:
        one, other, _ = recorder.split(x, (width, width, 3))
        return recorder.add(one, other)

    Both(device, rows, build).check(rows_batch(range(6), WANTED), EXACT)


class Heads:
    """An attention over looked-up queries, keys and values."""

    def __init__(
        self, heads: int, kv_heads: int, dim: int, pairs: int, *, interleaved: bool = False
    ) -> None:
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        rope = Rope(plain(2 * pairs, 100.0), interleaved, 1.25)
        self._layer = Attention(heads, kv_heads, dim, scale=0.4, rope=rope)
        self._layer.place = (0, 0)
        self.table = StoredRows.of(floats(60, (heads + 2 * kv_heads) * dim))

    def build(self, maker: Any, recorder: Recorder, x: Value) -> Value:
        """Record the attention; passes take the rotations into it."""
        self._layer.ops = recorder
        return self._layer(x, BATCH)


def attention(device: Device, block_size: int, heads: Heads) -> None:
    """Check prompts in chunks, and then single rows behind contexts around whole chunks.

    What nothing has written in the cache is NaN on the device.
    """
    both = Both(device, heads.table, heads.build, Shape(heads.kv_heads, heads.dim, block_size))
    done = [0, 0, 0]
    steps = ((25, 26, 1), 3), ((38, 38, 1), 5), ((1, 1, 1), 1), ((1, 1, 1), 1), ((1, 1, 1), 2)
    for counts, every in steps:
        chunks = [
            [(7 * at + 11 * number) % 60 for at in range(start, start + count)]
            for number, (start, count) in enumerate(zip(done, counts, strict=True))
        ]
        rows = np.arange(sum(counts))[::-every].copy()
        both.check(sequences_batch(chunks, done, rows, block_size), SUMS)
        done = [start + count for start, count in zip(done, counts, strict=True)]


def drawn(device: Device, vocabulary: int) -> None:
    """Check the most likely token: the first of equals, and none where a logit is not finite."""
    rows = floats(10, vocabulary)
    rows[1] = -np.abs(rows[1]) - 1
    rows[2] = rows[2].max()
    rows[3, vocabulary // 2 :] = rows[3].max() + 1
    rows[4] = -0.0
    rows[4, vocabulary - 1] = 0.0
    rows[5, vocabulary - 1] = 100.0
    rows[6, vocabulary // 3] = np.nan
    rows[7, vocabulary - 1] = np.inf
    rows[8, 0] = -np.inf
    rows[9] = np.finfo(np.float32).min
    both = Both(device, StoredRows.of(rows), _looked_up, is_logits=True)
    batch = rows_batch(range(10))._replace(logits_rows=np.arange(10, dtype=np.int32))
    expected = rows.argmax(1)
    expected[~np.isfinite(rows).all(1)] = -1
    found = both.probe.submit(batch).tokens()
    assert found.tolist() == expected.tolist()


def noise_bits(device: Device, tokens: int) -> None:
    """Check the 64 random bits of draws, which no rounding may change."""
    pairs = [noise.keys(seed, at) for seed, at in ((0, 0), (2**64 - 1, 5), (12345, 2**31 - 1))]
    keys = np.array(pairs, np.uint64).reshape(-1).view(np.uint32)
    result = device.memory(2 * len(pairs) * tokens)
    source = shader_of_noise("noise_bits", TOKENS=tokens)
    groups = -(-tokens // 64), len(pairs), 1
    memories = [device.memory(keys.size, keys), result]
    device.submit([device.launch("noise_bits", source, memories, lambda _: groups)], None)
    found = device.read(result).view(np.uint64).reshape(len(pairs), tokens)
    expected = noise.bits(pairs, noise.spread(np.arange(tokens)))
    assert np.array_equal(found, expected)


def draws(device: Device, vocabulary: int) -> None:
    """Check drawn tokens; in half of the rows float32 cannot tell the two best ones apart."""
    rows = 24
    temperatures = np.linspace(0.3, 2.0, rows)
    keys = [noise.keys(row, 3 * row) for row in range(rows)]
    logits = 4 * floats(rows, vocabulary)
    gumbel = noise.gumbel(keys, noise.spread(np.arange(vocabulary)))
    ordered = (logits / temperatures[:, None] + gumbel).argsort(1)
    for row in range(rows // 2):
        best, other = ordered[row, -1], ordered[row, -2]
        score = logits[row, best] / temperatures[row] + gumbel[row, best]
        logits[row, other] = (score - gumbel[row, other]) * temperatures[row]
    memory = device.memory(logits.size, logits.reshape(-1).view(np.uint32))
    drawer = Drawer(device, memory, rows, vocabulary)
    expected = (logits.astype(np.float64) / temperatures[:, None] + gumbel).argmax(1)
    assert drawer.draw(keys, temperatures.tolist()).tolist() == expected.tolist()
    assert rows // 2 <= drawer.settled < rows // 2 + 6
    assert drawer.fetched == 0


def equal_draws(device: Device) -> None:
    """Check a draw among logits so large that float32 cannot compare them: the host does."""
    logits = np.full((2, 40), 3e7, np.float32)
    memory = device.memory(logits.size, logits.reshape(-1).view(np.uint32))
    drawer, keys = Drawer(device, memory, 2, 40), [noise.keys(5, at) for at in range(2)]
    expected = noise.gumbel(keys, noise.spread(np.arange(40))).argmax(1)
    assert drawer.draw(keys, [1.0, 1.0]).tolist() == expected.tolist()
    assert drawer.fetched == 2


def noise_errors(device: Device) -> None:
    """Check that the noise of many tokens is well within the bound that draws rely on."""
    tokens = 100_000
    memory = device.memory(tokens, np.zeros(tokens, np.uint32))
    scores = _scores(device, memory, tokens)
    expected = noise.gumbel([noise.keys(1, 2)], noise.spread(np.arange(tokens)))[0]
    assert np.abs(scores - expected).max() < ERROR / 4


def _scores(device: Device, logits: Memory, tokens: int) -> Floats:
    """Return what the device finds for logits of zero: the noise in float32."""
    drawer = Drawer(device, logits, 1, tokens)
    drawer.draw([noise.keys(1, 2)], [1.0])
    bounds = device.read(drawer.scores).view(np.float32).reshape(-1, 2)
    middle: Floats = bounds.mean(1)
    return middle


def alone(device: Device, name: str) -> None:
    """Check that the bits of a product's row do not depend on the rows beside it."""
    matrix = stored(name, floats(9, 96, seed=1))
    both = Both(device, wide_rows(96), partial(multiplied, [matrix]))
    together = both.computed(rows_batch(range(9)))
    for row in range(9):
        assert np.array_equal(both.computed(rows_batch([row]))[0], together[row])


def attention_alone(device: Device) -> None:
    """Check that the bits of a row do not depend on chunks and other sequences."""
    heads, tokens = Heads(6, 2, 16, 8), [(5 * at) % 60 for at in range(70)]
    results: list[Floats] = []
    for chunks in ([70], [30, 40]):
        both = Both(device, heads.table, heads.build, Shape(2, 16, 4))
        parts, start = [], 0
        for count in chunks:
            own = tokens[start : start + count]
            batch = sequences_batch([own, [1]], [start, 0], np.arange(count), 4)
            parts.append(both.computed(batch))
            start += count
        results.append(np.concatenate(parts))
    whole, in_chunks = results
    assert_near(whole, in_chunks, EXACT)


Case = Callable[[Device], None]
CASES: dict[str, Case] = {
    "lookup F32 37": partial(lookup, name="F32", inputs=37),
    "lookup BF16 13": partial(lookup, name="BF16", inputs=13),
    "lookup F16 8": partial(lookup, name="F16", inputs=8),
    "lookup Q4_1 96": partial(lookup, name="Q4_1", inputs=96),
    "lookup Q8_0 96": partial(lookup, name="Q8_0", inputs=96),
    "lookup Q8_0 in parts": partial(lookup, name="Q8_0", inputs=96, most_words=100),
    "product F32 1": partial(product, name="F32", inputs=1, outputs=1, rows=1),
    "product F32 37": partial(product, name="F32", inputs=37, outputs=5, rows=3),
    "product BF16 13": partial(product, name="BF16", inputs=13, outputs=3, rows=5),
    "product BF16 576": partial(product, name="BF16", inputs=576, outputs=9, rows=4),
    "product BF16 in parts": partial(
        product, name="BF16", inputs=24, outputs=23, rows=6, most_words=100
    ),
    "product F16 20": partial(product, name="F16", inputs=20, outputs=6, rows=9),
    "product Q4_1 32": partial(product, name="Q4_1", inputs=32, outputs=3, rows=1),
    "product Q4_1 1536": partial(product, name="Q4_1", inputs=1536, outputs=7, rows=6),
    "product Q8_0 96": partial(product, name="Q8_0", inputs=96, outputs=5, rows=7),
    "product Q8_0 128": partial(product, name="Q8_0", inputs=128, outputs=66, rows=2),
    "product mixed": mixed_product,
    "product alone BF16": partial(alone, name="BF16"),
    "product alone Q4_1": partial(alone, name="Q4_1"),
    "norm 1": partial(norm, width=1, heads=1, offset=0.0),
    "norm 100": partial(norm, width=100, heads=1, offset=0.0),
    "norm 576 offset": partial(norm, width=576, heads=1, offset=1.0),
    "norm of heads": partial(norm, width=20, heads=3, offset=0.0),
    "gate 1": partial(gate, width=1),
    "gate 65": partial(gate, width=65),
    "add 63": partial(add, width=63),
    "add 65": partial(add, width=65),
    "attention 9 of 3": partial(attention, block_size=16, heads=Heads(9, 3, 64, 32)),
    "attention partly rotated": partial(attention, block_size=5, heads=Heads(4, 1, 24, 5)),
    "attention interleaved": partial(
        attention, block_size=16, heads=Heads(2, 2, 8, 4, interleaved=True)
    ),
    "attention not rotated": partial(attention, block_size=7, heads=Heads(54, 1, 4, 0)),
    "attention alone": attention_alone,
    "drawn of 1": partial(drawn, vocabulary=1),
    "drawn of 1023": partial(drawn, vocabulary=1023),
    "drawn of 3000": partial(drawn, vocabulary=3000),
    "noise": partial(noise_bits, tokens=1000),
    "noise in float32": noise_errors,
    "draws of 50": partial(draws, vocabulary=50),
    "draws of 2500": partial(draws, vocabulary=2500),
    "draws of equals": equal_draws,
}
