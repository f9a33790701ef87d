"""The native backend: runs a model on the CPU as a recorded program over its own KV cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import Floats, ForwardResult, KVLayout, StepSize
from octavo.backends.native import _native
from octavo.backends.native.emit import Emitter
from octavo.backends.native.footprint import NativeFootprint
from octavo.backends.native.interim import FinishedStep
from octavo.backends.native.layout import stride
from octavo.backends.native.packing import CpuWeights, Experts, KvDtype, Matrix, Packer, Vector
from octavo.backends.native.passes import PASSES
from octavo.backends.native.refusals import refuse_unsupported
from octavo.backends.native.tiers import choose_tier
from octavo.backends.step import Draws, HostBatch
from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch.sampling.step_sampler import StepSampler
from octavo.layers import CausalLM, Module
from octavo.observe.machine import ROOT, num_cores
from octavo.program.describe import describe
from octavo.program.listing import Instruction, Listing
from octavo.program.passes.fusion import rewrite
from octavo.program.recorder import record

BLOCK_TOKENS = _native.BLOCK_TOKENS  # kernels take so many tokens of a block together
_READ_BYTES = 128 << 20  # of a measurement of memory: more than caches hold
_CACHES = {"float32": "F32", "bfloat16": "BF16", "int8": "Int8"}


@dataclass(frozen=True, slots=True)
class NativeOptions:
    """Options of the native backend."""

    kv_dtype: KvDtype = "bfloat16"
    weights: CpuWeights = "auto"
    num_threads: int = 0  # 0: one for each physical core that this process may use
    instruction_set: str = ""  # empty: the best that this processor runs
    pinned: bool = False  # each thread stays on a core of its own


@dataclass(frozen=True, slots=True)
class PeakRates:
    """Upper bounds of the machine, measured: what all threads reach together in a second."""

    read: float  # bytes
    int8: float  # operations
    bf16: float
    float: float


def default_threads(root: Path = ROOT) -> int:
    """Return the number of physical cores, or a container's share of processors if that is less.

    With more threads than that, the system would suspend some of them while the others wait.
    """
    _, share = num_cores(root)
    cores = len(_native.physical_cores())
    return cores if share is None else max(1, min(cores, int(share)))


class NativeBackend:
    """The backend that runs recorded programs; implements `octavo.backends.base.Backend`."""

    def __init__(self, options: NativeOptions | None = None) -> None:
        options = options or NativeOptions()
        self._options = options
        self._team = _native.Team(options.num_threads or default_threads(), options.pinned)
        self.tier = choose_tier(options.instruction_set)
        self._sampler = StepSampler()
        self._packer = Packer(self._team, options.weights)
        self._is_settled = False
        self._layout: KVLayout | None = None
        self._block_size = 0
        self._program: _native.Program | None = None
        self._listing: Listing | None = None
        self.barriers: frozenset[int] = frozenset()  # before the instructions with these numbers
        self._logits = np.empty((0, 0), np.float32)
        self._hidden = np.empty((0, 0), np.float32)
        self._widths = (0, 0)
        self._counts = (0, 0)  # rows of both
        self._result: ForwardResult | None = None  # views of both, of the last step

    @property
    def threads(self) -> int:
        return self._team.size

    @property
    def weight_bytes(self) -> int:
        return self._packer.num_bytes

    def parameter(self, array: NDArray[Any]) -> Vector:
        return self._packer.vector(array)

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> Matrix:
        return self._packer.matrix(parts, module)

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> Experts:
        return self._packer.experts(matrices, module)

    def settle(self) -> None:
        self._packer.finish()
        self._is_settled = True

    def prepare(self, model: CausalLM, layout: KVLayout, block_size: int) -> None:
        self._packer.begin()
        self._is_settled = False
        if block_size % BLOCK_TOKENS:
            raise ValueError(
                f"block_size={block_size}: the native engine takes multiples of {BLOCK_TOKENS}"
            )
        listing = record(model)
        rewrite(listing, PASSES)
        refuse_unsupported(listing)
        program = _native.Program(self.tier, self._team)
        self.barriers = Emitter(program, self.tier, self._packer.vector).emit(listing)
        self._layout, self._block_size = layout, block_size
        self._program, self._listing = program, listing
        self._widths = (model.head.outputs, model.embed.hidden)
        self._logits, self._hidden = (
            np.empty((0, stride(width)), np.float32) for width in self._widths
        )
        self._result = None

    @property
    def _ready(self) -> _native.Program:
        assert self._program is not None, "call prepare first"
        return self._program

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        return NativeFootprint(self._options.weights, self._options.kv_dtype).step_bytes(size)

    def make_cache(self, num_blocks: int) -> None:
        layout = self._layout
        assert layout is not None, "call prepare first"
        self._ready.make_caches(
            getattr(_native.CacheFormat, _CACHES[self._options.kv_dtype]),
            layout.num_buffers,
            num_blocks,
            self._block_size,
            layout.kv_heads,
            layout.head_dim,
        )

    def step(self, batch: HostBatch, draws: Draws) -> FinishedStep:
        self._sampler.change(draws)
        logits, hidden = self.forward(self._sampler.with_tokens(batch))
        return FinishedStep(self._sampler.finish(draws, logits, hidden))

    def forward(self, batch: HostBatch) -> ForwardResult:
        if not self._is_settled:
            self.settle()
        for source, destination in batch.copies:
            self._ready.copy_block(source, destination)
        result = self._result_of(len(batch.logits_rows), len(batch.hidden_rows))
        if not len(batch.token_ids):
            return result
        self._ready.run(
            batch.token_ids,
            batch.positions,
            batch.row_starts,
            batch.tables,
            batch.logits_rows,
            batch.hidden_rows,
            self._logits,
            self._hidden,
        )
        return result

    def _result_of(self, num_logits: int, num_hidden: int) -> ForwardResult:
        """Return views of the result arrays, which every step overwrites and large ones replace."""
        if self._result is None or (num_logits, num_hidden) != self._counts:
            self._result = None  # and stays None if there is no memory
            if len(self._logits) < num_logits:
                self._logits = np.empty((num_logits, self._logits.shape[1]), np.float32)
            if len(self._hidden) < num_hidden:
                self._hidden = np.empty((num_hidden, self._hidden.shape[1]), np.float32)
            logits: Floats = self._logits[:num_logits, : self._widths[0]]
            hidden: Floats = self._hidden[:num_hidden, : self._widths[1]]
            self._counts = num_logits, num_hidden
            self._result = ForwardResult(logits, hidden)
        return self._result

    # for people and tests

    def describe(self) -> str:
        """Return the program as text, one line for each instruction."""
        assert self._listing is not None, "call prepare first"
        return describe(self._listing, self.barriers)

    def profile(self, on: bool) -> None:
        """Start (or stop) measuring each instruction, and forget earlier measurements."""
        self._ready.set_profiling(on)

    @property
    def instructions(self) -> list[Instruction]:
        assert self._listing is not None, "call prepare first"
        return self._listing.instructions

    def timings(self) -> tuple[list[float], list[float]]:
        """Return the caller's seconds in each instruction, and those of waiting before it."""
        return self._ready.seconds, self._ready.waits

    def peak_rates(self, seconds: float) -> PeakRates:
        """Measure what this machine can do at best, each rate for so long."""
        rates = [
            _native.operation_rate(self.tier, self._team, products, seconds)
            for products in (_native.Products.Int8, _native.Products.Bf16, _native.Products.Float)
        ]
        return PeakRates(_native.read_rate(self.tier, self._team, _READ_BYTES, seconds), *rates)
