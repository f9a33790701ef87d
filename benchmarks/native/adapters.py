"""Measures what adapters cost the native engine: steps of a model of a 1B shape, with and without.

    python -m benchmarks.native.adapters [--weights BF16|Q4_K] [--rows 1,32] [--rank 16]

The weights are random, in the shape of Llama 3.2 1B; adapters change all projections of all layers.
A step decodes one token of each of `rows` sequences. Each round times some steps of each kind in
turn, so that other load on the machine affects all; a line has the median of the rounds' ratios to
the steps without adapters, and their range:

    idle      an engine that has adapters, of which no row has one
    one       all rows have the same adapter
    each      every row has an adapter of its own

What is below 1 is slower. `pack` is the time in which an adapter is packed, which happens beside
steps, and `slot` what a step takes longer that puts one into a slot.

    python -m benchmarks.native.adapters --files [--dtype float32]

times what a swap from disk does instead, with the file in the page cache: copied and sealed as the
loader's process does it, mapped, checked, and packed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks.served.adapters import DTYPES, AdapterMaker
from octavo.adapters.pairs import Limits
from octavo.adapters.read import PEFT_FILE, SETTINGS_FILE, AdapterReader
from octavo.backends.adapter_weights import AdapterSettings, AdapterWeights, Pair
from octavo.backends.native.backend import NativeBackend, NativeOptions
from octavo.backends.step import NO_ROWS, Draws, HostBatch
from octavo.backends.stored_rows import Floats, StoredRows
from octavo.layers import Linear, Model
from octavo.loader_process.connection import open_sealed
from octavo.loader_process.messages import FileRead, close_all
from octavo.loader_process.read import Directories, read_file
from octavo.loader_process.sealed import SpareMemory
from octavo.models.build import bind
from octavo.models.config_reader import Config
from octavo.models.kv_layout import place_layers
from octavo.models.needs import find_needs
from octavo.models.registry import family_of
from octavo.observe.machine import processor
from octavo.observe.memory_bill import MAX_SPARE_BYTES
from octavo.quant.plain import layout_of
from tests.backends.native.kernels.test_gemm_quantized import kind_of, random_blocks

SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
POSITION = 128  # of the rows
BLOCK_SIZE = 16
PARTS = ("copied", "mapped", "checked", "packed")
NO_DRAWS = Draws((), (), NO_ROWS, NO_ROWS)
Step = Callable[[], object]


class RandomWeights:
    """Random rows of one stored type for all tensors that a model needs."""

    def __init__(self, model: Model, type_: str) -> None:
        self._type = type_
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._known: dict[tuple[int, ...], StoredRows] = {}
        for need in find_needs(model, ()):
            for source, shape in zip(need.sources, need.shapes(), strict=True):
                for name in need.names(source):
                    self._shapes[name] = tuple(shape)

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def rows(self, name: str) -> StoredRows:
        """Return rows that all tensors of one shape share."""
        shape = self._shapes[name]
        if shape not in self._known:
            self._known[shape] = self._made(shape)
        return self._known[shape]

    def _made(self, shape: tuple[int, ...]) -> StoredRows:
        if len(shape) == 1:
            return StoredRows.of(np.ones((1, *shape), np.float32))
        rows, inputs = shape
        kind = kind_of(self._type)
        if self._type != "BF16":
            return StoredRows(
                layout_of(kind), inputs, random_blocks(self._type, rows, inputs, 0.02)
            )
        some: Floats = np.random.default_rng(rows).standard_normal((256, inputs), np.float32)
        some *= np.float32(inputs**-0.5)
        halves = np.resize(some.astype(ml_dtypes.bfloat16), (rows, inputs))
        return StoredRows(layout_of(kind), inputs, halves.view(np.uint8))

    def row_type(self, name: str) -> str:
        return self._type if len(self._shapes[name]) > 1 else "F32"

    def is_in_act_order(self, name: str) -> bool:
        return False

    def stored_types(self) -> Mapping[str, str]:
        return {name: self.row_type(name) for name in self._shapes}

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        """Accept everything: the weights are made for the model."""


class Engine:
    """A model on the native engine, and the steps that are timed."""

    def __init__(self, asked: argparse.Namespace) -> None:
        family = family_of("LlamaForCausalLM")
        self.model = family(family.read(Config(dict(SHAPE))))
        self._layout = place_layers(self.model)
        options = NativeOptions(num_threads=asked.threads, kv_dtype="bfloat16")
        self.backend = NativeBackend(options)
        bind(self.model, self.backend, RandomWeights(self.model, asked.weights))
        self._rank = asked.rank
        self._slots = max(asked.rows)

    def prepare(self, *, adapters: bool) -> None:
        """Record the model anew over the same weights."""
        settings = AdapterSettings(self._slots, self._rank) if adapters else None
        self.backend.prepare(self.model, self._layout, BLOCK_SIZE, adapters=settings)
        self.backend.make_cache(1 + self._slots * (POSITION // BLOCK_SIZE + 1))
        self.backend.settle()

    def batch(self, rows: int, slots: NDArray[np.int32] = NO_ROWS) -> HostBatch:
        blocks = POSITION // BLOCK_SIZE + 1
        each = np.arange(rows, dtype=np.int32)
        tables = 1 + np.arange(rows * blocks, dtype=np.int32).reshape(rows, blocks)
        return HostBatch(
            each,
            np.full(rows, POSITION, np.int32),
            np.arange(rows + 1, dtype=np.int32),
            (tables,),
            each,
            adapters=slots,
        )

    def adapter(self, seed: int) -> AdapterWeights:
        """Make an adapter of all projections, in bf16."""
        random = np.random.default_rng(seed)
        known: dict[tuple[int, ...], NDArray[Any]] = {}

        def numbers(*shape: int) -> NDArray[Any]:
            if shape not in known:
                values = random.standard_normal(shape, np.float32) * np.float32(0.02)
                known[shape] = values.astype(ml_dtypes.bfloat16)
            return known[shape].copy()

        pairs = {
            path: tuple(
                Pair(numbers(self._rank, layer.inputs), numbers(part.rows, self._rank), 2.0)
                for part in layer.parts
            )
            for path, layer in self.model.walk()
            if isinstance(layer, Linear) and path.startswith("blocks.")
        }
        return AdapterWeights(pairs, self._rank)


def seconds_of(step: Step, steps: int) -> float:
    """Return the median time of some steps."""
    found = []
    for _ in range(steps):
        began = time.perf_counter()
        step()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def measure(engine: Engine, asked: argparse.Namespace) -> Iterable[str]:
    """Time all kinds of steps in turn; yield the lines."""
    backend = engine.backend
    engine.prepare(adapters=True)
    values, packing = [], []
    for seed in range(max(asked.rows)):
        weights = engine.adapter(seed)
        began = time.perf_counter()
        values.append(backend.adapter(weights))
        packing.append(1000 * (time.perf_counter() - began))
    size = values[0].num_bytes / 1e6
    yield f"pack      {_spread(packing, 'ms')}, {size:.1f} MB"
    filling = tuple((slot, value, 1.0) for slot, value in enumerate(values))
    ratios: dict[str, list[float]] = {}
    absolute: dict[int, list[float]] = {}
    for round_ in range(asked.rounds + 1):  # the first one fills the caches and is not counted
        for rows in asked.rows:
            each = np.arange(rows, dtype=np.int32)
            kinds = {
                "none": engine.batch(rows),
                "one": engine.batch(rows, np.zeros(rows, np.int32)),
                "each": engine.batch(rows, each),
            }
            engine.prepare(adapters=False)
            plain = _timed(backend, kinds["none"], asked.steps)
            engine.prepare(adapters=True)
            backend.step(engine.batch(1)._replace(adapter_slots=filling), NO_DRAWS).collect()
            found = {name: _timed(backend, batch, asked.steps) for name, batch in kinds.items()}
            if round_ == 0:
                continue
            absolute.setdefault(rows, []).append(1000 * found["none"])
            ratios.setdefault(f"idle, {rows} rows", []).append(plain / found["none"])
            for name in ("one", "each"):
                ratios.setdefault(f"{name}, {rows} rows", []).append(found["none"] / found[name])
    for rows, times in absolute.items():
        yield f"step of {rows} rows {_spread(times, 'ms')}"
    for name, several in ratios.items():
        yield f"{name:16} {_spread(several, '')}"
    yield f"slot      {_spread(_slot_times(engine, filling[0]), 'µs')}"


def measure_files(engine: Engine, asked: argparse.Namespace) -> Iterable[str]:
    """Time the parts of a swap from a file in the page cache; yield the lines."""
    reader = AdapterReader(engine.model, Limits(asked.rank))
    engine.prepare(adapters=True)
    times: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        maker = AdapterMaker(engine.model.spec, asked.rank, asked.dtype)
        place = maker.write(Path(name, "adapter"), 0)
        directories, spare = Directories([place]), SpareMemory(MAX_SPARE_BYTES)
        for round_ in range(asked.rounds * asked.steps + 1):
            spare.fill()
            at = [time.perf_counter()]
            opened = read_file(directories, place, (SETTINGS_FILE,), (PEFT_FILE,), spare)
            at.append(time.perf_counter())
            sizes = [os.fstat(descriptor).st_size for descriptor in opened]
            file = open_sealed(place, FileRead(0, *sizes), *opened)
            close_all(opened)
            at.append(time.perf_counter())
            weights = reader.read(file.checkpoint, file.beside[SETTINGS_FILE])
            at.append(time.perf_counter())
            value = engine.backend.adapter(weights)
            at.append(time.perf_counter())
            if round_:
                for part, (begin, end) in zip(PARTS, pairwise(at), strict=True):
                    times.setdefault(part, []).append(1000 * (end - begin))
                times.setdefault("whole", []).append(1000 * (at[-1] - at[0]))
            del weights, file
    yield f"{maker.num_bytes / 1e6:.1f} MB of {asked.dtype}, packed {value.num_bytes / 1e6:.1f} MB"
    for part, several in times.items():
        yield f"{part:9} {_spread(several, 'ms')}"


def _timed(backend: NativeBackend, batch: HostBatch, steps: int) -> float:
    return seconds_of(lambda: backend.step(batch, NO_DRAWS).collect(), steps)


def _slot_times(engine: Engine, slot: tuple[int, Any, float]) -> list[float]:
    """Return the microseconds of empty steps that put an adapter into a slot."""
    batch = HostBatch(NO_ROWS, NO_ROWS, np.zeros(1, np.int32), (), NO_ROWS, adapter_slots=(slot,))
    return [1e6 * seconds_of(lambda: engine.backend.step(batch, NO_DRAWS).collect(), 20)]


def _spread(values: list[float], unit: str) -> str:
    median = statistics.median(values)
    return f"{median:8.3f} {unit} ({min(values):.3f} to {max(values):.3f})"


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


def main() -> int:
    """Measure, and print the lines."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--weights", default="BF16", help="the stored type: BF16, Q4_K, Q8_0 …")
    parser.add_argument("--rows", type=_numbers, default=(1, 32))
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="of each kind in a round")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as there are cores")
    parser.add_argument("--files", action="store_true", help="time the parts of a swap from disk")
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="bfloat16", help="of the file")
    asked = parser.parse_args()
    engine = Engine(asked)
    print(f"{processor()}, {engine.backend.num_threads} threads, {engine.backend.tier}")
    print(f"{asked.weights}, rank {asked.rank}")
    for line in (measure_files if asked.files else measure)(engine, asked):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
