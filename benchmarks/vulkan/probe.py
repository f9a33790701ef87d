"""A model on a Vulkan device: its weights, its paged cache, and steps of its recorded program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.vulkan.device import UNWRITTEN, Device, Memory, Reading
from benchmarks.vulkan.emit import Emitter
from benchmarks.vulkan.step import Limits, Sizes, StepForm
from benchmarks.vulkan.weights import DeviceMatrix, make_matrix
from octavo.backends.base import Floats, ForwardResult, Ints, KVLayout
from octavo.backends.step import HostBatch
from octavo.backends.stored_rows import StoredRows
from octavo.layers import GateUpLinear, Model, Module, Rope
from octavo.program.listing import Listing, UnsupportedError
from octavo.program.passes.fusion import WHOLE, rewrite
from octavo.program.recorder import record

NO_FLOATS = np.zeros((0, 0), np.float32)


class Drawn:
    """The tokens of a submitted step, for which the host has not waited yet."""

    def __init__(self, reading: Reading | None) -> None:
        self._reading = reading

    def tokens(self) -> Ints:
        """Wait for them; -1 stands for a row whose logits are not all finite."""
        if self._reading is None:
            return np.zeros(0, np.int32)
        return self._reading.words().view(np.int32)


class Probe:
    """The part of a backend that one model's steps need, in float32 but for the weights.

    It binds as a backend does (`parameter`, `matrix`), and has `prepare`, `make_cache` and
    `forward` with the meaning of `LogitsBackend`. A token of LAST_SAMPLE is the one that the step
    before drew for the logits row with the number of the row's sequence.
    """

    def __init__(
        self, device: Device, limits: Limits | None = None, most_words: int | None = None
    ) -> None:
        self.device = device
        self.limits = limits or Limits()
        self._most_words = most_words or device.most_words
        self._turns: dict[Rope, Memory] = {}
        self.weight_bytes = 0

    # weights

    def parameter(self, array: NDArray[Any]) -> Memory:
        values = np.ascontiguousarray(array, np.float32).reshape(-1)
        self.weight_bytes += values.nbytes
        return self.device.memory(values.size, values.view(np.uint32))

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> DeviceMatrix:
        gated = isinstance(module, GateUpLinear)
        made = make_matrix(self.device, parts, gated=gated, most_words=self._most_words)
        self.weight_bytes += made.num_bytes
        return made

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> Any:
        raise UnsupportedError("experts")

    # the program

    def prepare(self, model: Model, layout: KVLayout, block_size: int) -> None:
        """Record a bound model's program; `make_cache` emits it."""
        listing = record(model)
        rewrite(listing, WHOLE)
        self.prepare_listing(listing, layout, block_size)

    def prepare_listing(self, listing: Listing, layout: KVLayout, block_size: int) -> None:
        """Take a listing, and the form of its cache."""
        if len(layout.groups) != 1 or layout.groups[0].spec.kind != "full":
            raise UnsupportedError("other KV than keys and values of all positions")
        self._listing, self._spec = listing, layout.groups[0]
        self.form = StepForm(self.limits, block_size)

    def make_cache(self, num_blocks: int) -> None:
        """Make an empty cache, an array for each layer, and emit the program for it."""
        spec, layers = self._spec.spec, self._spec.num_layers
        words = num_blocks * spec.block_vectors(self.form.block_size) * spec.dim
        self.cells = [self.device.memory(words) for _ in range(layers)]
        self._batch = self.device.memory(self.form.words)
        self._drawn = self.device.memory(self.limits.rows)
        self._emitter = Emitter(
            self.device, self.form, self._batch, self._drawn, self._table_of_turns
        )
        self._emitter.emit(self._listing, lambda place: self.cells[place[1]])
        self.launches = self._emitter.launches

    def _table_of_turns(self, rope: Rope) -> Memory:
        """Return the cosines and sines of all positions, as numpy has them in float32."""
        if rope not in self._turns:
            positions = np.arange(self.form.blocks * self.form.block_size, dtype=np.float32)
            angles = positions[:, None] * np.array(rope.frequencies, np.float32)
            table = np.stack((np.cos(angles), np.sin(angles)), -1) * np.float32(rope.magnitude)
            words = table.reshape(-1).view(np.uint32)
            self._turns[rope] = self.device.memory(max(words.size, 2), words)
        return self._turns[rope]

    # steps

    def forward(self, batch: HostBatch) -> ForwardResult:
        """Compute a step; return logits and hidden states of the wanted rows."""
        sizes = self._begin(batch)
        self.device.submit(self.launches, sizes)
        return ForwardResult(
            self._read("LogitsOut", sizes.rows["Logits"]),
            self._read("HiddenOut", sizes.rows["Hidden"]),
        )

    def forget(self) -> None:
        """Make all values of steps unwritten again; the cache and drawn tokens stay."""
        for memory in {memory.buffer: memory for memory, _, _ in self._emitter.extents}.values():
            self.device.clear(memory)

    def written_beyond(self, batch: HostBatch) -> int:
        """Return how many words behind the last rows of a step, from `forget` on, are written."""
        rows = self.form.write(batch)[1].rows
        ends: dict[Memory, int] = {}
        for memory, space, width in self._emitter.extents:
            ends[memory] = max(ends.get(memory, 0), rows[space] * width)
        return sum(
            int((self.device.read(memory)[end:] != UNWRITTEN).sum()) for memory, end in ends.items()
        )

    def submit(self, batch: HostBatch) -> Drawn:
        """Submit a step that draws the most likely tokens, and do not wait for it."""
        sizes = self._begin(batch)
        wanted = self._drawn, sizes.rows["Logits"]
        return Drawn(self.device.submit(self.launches, sizes, wanted))

    def _begin(self, batch: HostBatch) -> Sizes:
        words, sizes = self.form.write(batch)
        self.device.write(self._batch, words)
        return sizes

    def _read(self, place: str, rows: int) -> Floats:
        if place not in self._emitter.outputs or not rows:
            return NO_FLOATS
        buffer, memory = self._emitter.outputs[place]
        words = self.device.read(memory, rows * buffer.width)
        return words.view(np.float32).reshape(rows, buffer.width)
