"""Small programs over a table of rows, interpreted by torch and run by the Vulkan probe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.vulkan.device import Device
from benchmarks.vulkan.probe import Probe
from benchmarks.vulkan.step import Limits
from octavo.backends.base import Floats, KVLayers, KVLayout
from octavo.backends.step import HostBatch
from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch.attention import TorchBatch, make_buffers
from octavo.backends.torch.backend import TorchBackend
from octavo.backends.torch.interpreter import Interpreter
from octavo.layers import Module
from octavo.layers.kv_spec import KVSpec
from octavo.loader.tensor_type import BF16, F16
from octavo.program.listing import Listing, Value
from octavo.program.passes.fusion import WHOLE, rewrite
from octavo.program.recorder import RecordedBatch, Recorder
from octavo.quant.plain import layout_of
from octavo.quantize.gguf.blocks import BLOCK_TYPES

BATCH = RecordedBatch()
NUM_BLOCKS = 61
LIMITS = Limits(rows=150, sequences=4, positions=200)
# (maker of weights, recorder, looked-up rows) → the value whose rows are compared
Build = Callable[[Any, Recorder, Value], Value]


class Shape(NamedTuple):
    """The shape of an attention's cache, if a program has one."""

    kv_heads: int = 1
    dim: int = 8
    block_size: int = 4

    @property
    def layout(self) -> KVLayout:
        return KVLayout((KVLayers(KVSpec("full", self.kv_heads, self.dim), 1),))


def floats(*shape: int, seed: int = 0) -> Floats:
    """Draw numbers of a normal distribution."""
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def stored(name: str, values: Floats) -> StoredRows:
    """Return rows of a format, rounded to it."""
    if name == "F32":
        return StoredRows.of(values)
    if name in ("BF16", "F16"):
        plain, dtype = {"BF16": (BF16, torch.bfloat16), "F16": (F16, torch.float16)}[name]
        numbers = torch.from_numpy(values).to(dtype).view(torch.uint8).numpy()
        return StoredRows(layout_of(plain), values.shape[1], numbers)
    kind = BLOCK_TYPES[name.lower()]
    return StoredRows(layout_of(kind.type), values.shape[1], kind.rows(values))


def listing_of(maker: Any, table: StoredRows, build: Build, *, is_logits: bool = False) -> Listing:
    """Record a program that looks rows up, does something with them, and selects some."""
    recorder = Recorder()
    x = recorder.embed(BATCH.token_ids, maker.matrix([table], Module()))
    found = build(maker, recorder, x)
    hidden = recorder.select_rows(found, BATCH.hidden_rows)
    hidden.buffer.place = "HiddenOut"
    if is_logits:
        logits = recorder.select_rows(found, BATCH.logits_rows)
        logits.buffer.place = "LogitsOut"
    return Listing(recorder.instructions)


class Both:
    """A program on both sides, with a cache of its own on each."""

    def __init__(
        self,
        device: Device,
        table: StoredRows,
        build: Build,
        shape: Shape | None = None,
        *,
        most_words: int | None = None,
        is_logits: bool = False,
    ) -> None:
        shape = shape or Shape()
        self.device = device
        self._interpreter = Interpreter(
            listing_of(TorchBackend(), table, build, is_logits=is_logits)
        )
        self._buffers = make_buffers(shape.layout, NUM_BLOCKS, shape.block_size, torch.float32)
        self.probe = Probe(device, LIMITS, most_words)
        listing = listing_of(self.probe, table, build, is_logits=is_logits)
        rewrite(listing, WHOLE)
        self.probe.prepare_listing(listing, shape.layout, shape.block_size)
        self.probe.make_cache(NUM_BLOCKS)

    def expected(self, batch: HostBatch) -> Floats:
        """Interpret the program by torch."""
        found = self._interpreter.run(TorchBatch.of(batch, self._buffers)).hidden
        return found.numpy()

    def computed(self, batch: HostBatch) -> Floats:
        """Run the program; nothing but its rows may be written, and no guard."""
        self.probe.forget()
        found = self.probe.forward(batch).hidden
        assert not self.probe.written_beyond(batch), "rows beyond the last"
        assert not self.device.touched_guards(), "words behind the end of an array"
        return found

    def check(self, batch: HostBatch, tolerance: float) -> None:
        """Compare both, relatively to the largest number."""
        assert_near(self.computed(batch), self.expected(batch), tolerance)


def assert_near(found: Floats, expected: Floats, tolerance: float) -> None:
    """Require the expected numbers up to a part of the largest one."""
    largest = float(np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * largest)


def rows_batch(tokens: Sequence[int], wanted: Sequence[int] | None = None) -> HostBatch:
    """Make a step of rows that do not concern each other, of which all are wanted, or some."""
    count = len(tokens)
    chosen = np.arange(count, dtype=np.int32) if wanted is None else np.array(wanted, np.int32)
    return sequences_batch([list(tokens)], [0], chosen, 4)


def sequences_batch(
    tokens: Sequence[Sequence[int]],
    starts: Sequence[int],
    hidden_rows: np.ndarray,
    block_size: int,
    logits_rows: np.ndarray | None = None,
) -> HostBatch:
    """Make a step of sequences, whose blocks lie anywhere in the cache."""
    ends = np.cumsum([0, *map(len, tokens)], dtype=np.int32)
    spans = zip(tokens, starts, strict=True)
    positions = np.concatenate([np.arange(len(chunk)) + start for chunk, start in spans])
    per_sequence = (NUM_BLOCKS - 1) // len(tokens)
    blocks = np.random.default_rng(7).permutation(np.arange(1, NUM_BLOCKS, dtype=np.int32))
    tables = blocks[: per_sequence * len(tokens)].reshape(len(tokens), per_sequence)
    assert positions.max(initial=0) < per_sequence * block_size
    return HostBatch(
        np.concatenate([np.array(chunk, np.int32) for chunk in tokens]),
        positions.astype(np.int32),
        ends,
        (tables,),
        np.zeros(0, np.int32) if logits_rows is None else logits_rows.astype(np.int32),
        hidden_rows.astype(np.int32),
    )
