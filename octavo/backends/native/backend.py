"""The native backend: runs a model on the CPU as a recorded program over its own KV cache."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.backends.base import Arithmetic, ForwardResult, Ints, KVLayout, StepSize
from octavo.backends.native import _native
from octavo.backends.native.emit import Emitter
from octavo.backends.native.kernel_choice import Choice
from octavo.backends.native.kv_formats import KV_FORMATS, KvDtype
from octavo.backends.native.measure import ProductCalibration, measured_tier
from octavo.backends.native.measured_file import MeasuredFile, machine_key
from octavo.backends.native.packing import ExpertOwners, KeptWeights, Matrix, Packer, Vector
from octavo.backends.native.panels import FreshPanels
from octavo.backends.native.passes import PASSES
from octavo.backends.native.pending import NativePending, ProcessedPending
from octavo.backends.native.refusals import refuse_unsupported
from octavo.backends.native.stages.cache_groups import cache_groups
from octavo.backends.native.tiers import choose_tier, orders
from octavo.backends.step import (
    NO_ADAPTERS,
    NO_ROWS,
    Draws,
    HostBatch,
    NoAdaptersError,
    Pending,
    Processor,
    refuse_adapters,
)
from octavo.backends.stored_rows import StoredRows
from octavo.distributed.context import RankPlace, StagePlace
from octavo.layers import HiddenStates, Model, Module, Value
from octavo.observe.machine import ROOT, num_cores
from octavo.options.cpu_types import CpuActivations
from octavo.program import operands
from octavo.program.listing import Instruction, Listing
from octavo.program.passes.fusion import rewrite
from octavo.program.passes.kept_hidden import keep_hidden
from octavo.program.recorder import record

if TYPE_CHECKING:
    from octavo.backends.adapter_weights import AdapterSettings, AdapterWeights
    from octavo.backends.native.adapters.packer import AdapterPacker
    from octavo.backends.native.packed_cache.panels import PackedCache

_log = logging.getLogger(__name__)

BLOCK_TOKENS = _native.BLOCK_TOKENS  # kernels take so many tokens of a block together
_POLL_SECONDS = 0.002  # while a measurement is awaited
_NO_DRAWS = Draws((), (), NO_ROWS, NO_ROWS)


class NativeOptions(Struct, frozen=True):
    """Options of the native backend."""

    kv_dtype: KvDtype = "bfloat16"
    weights: KeptWeights = "auto"
    drafter_weights: KeptWeights = "auto"  # those of a model that drafts
    activations: CpuActivations = "auto"
    num_threads: int = 0  # 0: one for each physical core that this process may use
    instruction_set: str = ""  # empty: the best that this processor runs, or the fastest measured
    accumulation_order: str = ""  # of bf16 sums; empty: that of the instruction set
    # Keeps what was measured; None: nothing is, and the best instruction set by its name computes.
    measured_file: Path | None = None
    preallocates_kv: bool = False  # the cache's memory is taken when the cache is made
    pinned: bool = False  # each thread stays on a core of its own
    packed_cache: PackedCache | None = None  # of weights; None: they are packed at every start
    # Among the ranks, or the stages, of the model; None: there are no others.
    place: RankPlace | StagePlace | None = None
    owners: ExpertOwners | None = None  # None: each rank has a share of every expert


class PeakRates(Struct, frozen=True):
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


class _Threads(NamedTuple):
    """The threads of this process, and the ranks that it is one of, if there are others."""

    team: _native.Team
    ranks: _native.Ranks | None = None
    sums: _native.Sums | None = None  # if ranks add up what each makes of its inputs


def _make_threads(options: NativeOptions) -> _Threads:
    place, processes = options.place, 1  # on this machine
    if isinstance(place, StagePlace):
        processes, place = place.num_local, place.ranks
    processes *= 1 if place is None else place.ranks
    threads = options.num_threads or max(1, default_threads() // processes)
    if place is None:
        return _Threads(_native.Team(threads, options.pinned))
    threads = options.num_threads or place.threads or threads
    ranks = _native.Ranks(place.descriptor, place.num_bytes, place.rank, place.ranks, threads)
    if place.sums:
        from octavo.backends.native.ranks.exchange import make_sums

        return _Threads(_native.Team(threads, options.pinned), ranks, make_sums(place, ranks))
    return _Threads(_native.Team(threads, options.pinned, ranks), ranks)


def _formats(listing: Listing) -> list[str]:
    """Return the formats of the matrices that a program multiplies with."""
    found: list[str] = []
    for i in listing:
        matrices = i.experts.matrices[:1] if i.experts is not None else (i.matrix,)
        for matrix in matrices:
            if isinstance(matrix, Matrix) and i.op in ("Gemm", "ExpertsIn", "ExpertsOut"):
                found += [piece.native.format.name for piece in matrix.pieces]
    return list(dict.fromkeys(found))


class Emitted(NamedTuple):
    """A model as a program: its listing, and before which instructions all threads wait."""

    model: Model
    program: _native.Program
    listing: Listing
    barriers: frozenset[int]


class NativeBackend:
    """The backend that runs recorded programs; implements `octavo.backends.base.Backend`."""

    def __init__(self, options: NativeOptions | None = None) -> None:
        options = options or NativeOptions()
        self._options = options
        self._team, self.ranks, self._sums = _make_threads(options)
        self._file: MeasuredFile | None = None
        self._calibration: ProductCalibration | None = None  # while something is measured
        self.choices: dict[str, list[Choice]] = {}  # what measurements chose, by format
        self.tier = self._choose_tier()
        cache = options.packed_cache
        make_panels = FreshPanels if cache is None else cache.panels
        kept = (options.weights, make_panels, options.activations)
        self._packer = Packer(self._team, *kept, owners=options.owners)
        self._is_settled = False
        self._programs: dict[str, Emitted] = {}  # by owner; the first model's is ""
        self._runner: _native.StepRunner | None = None
        self._cache: _native.KvCache | None = None
        self._layout: tuple[KVLayout, int] | None = None  # with the size of a block
        # Open slots with user-written processors, with those and the prompt.
        self._processed: dict[int, tuple[tuple[Processor, ...], Ints]] = {}
        self._adapters: AdapterPacker | None = None  # if rows may have adapters
        self._unfinished: ProcessedPending | None = None  # the last step, if it had such slots
        self._has_warned = False

    def _choose_tier(self) -> str:
        """Return the instruction set that computes all but some products."""
        options = self._options
        tier = choose_tier(options.instruction_set, options.accumulation_order)
        if options.measured_file is None or options.instruction_set:
            return tier
        self._file = MeasuredFile(options.measured_file, machine_key())
        return tier if options.accumulation_order else measured_tier(self._file)

    @property
    def can_continue(self) -> bool:
        return True

    @property
    def arithmetic(self) -> Arithmetic:
        return Arithmetic(self.tier, orders()[self.tier])

    @property
    def threads(self) -> int:
        return self._team.size

    @property
    def num_threads(self) -> int:
        return self._team.all

    @property
    def weight_bytes(self) -> int:
        return self._packer.num_bytes

    def maker(self, owner: str) -> Packer:
        return self._packer.with_floats_as(self._options.drafter_weights)

    def parameter(self, array: NDArray[Any]) -> Vector:
        return self._packer.parameter(array)

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> operands.Matrix:
        return self._packer.matrix(parts, module)

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> operands.Experts:
        return self._packer.experts(matrices, module)

    def settle(self) -> None:
        self._packer.finish()
        if self._calibration is not None and not self._is_settled:
            self._calibration.begin(self._recorded)
        self._is_settled = True

    def prepare(
        self,
        model: Model,
        layout: KVLayout,
        block_size: int,
        kept_layers: Sequence[int] = (),
        adapters: AdapterSettings | None = None,
        features: HiddenStates | None = None,
    ) -> None:
        self._packer.begin()
        self._is_settled = False
        if block_size % BLOCK_TOKENS:
            raise ValueError(
                f"block_size={block_size}: the native engine takes multiples of {BLOCK_TOKENS}"
            )
        self._adapters = None
        made = self._emitted(model, kept_layers, adapters, features)
        self._programs, self._layout = {"": made}, (layout, block_size)
        self._runner = _native.StepRunner(
            self.tier,
            made.program,
            self._team,
            model.spec.vocabulary,
            model.spec.hidden,
            self._packer,
        )
        self._processed, self._unfinished = {}, None
        self._measure()

    def adapter(self, weights: AdapterWeights) -> Value:
        if self._adapters is None:
            raise NoAdaptersError(NO_ADAPTERS)
        if not self._is_settled:  # magnitudes are measured by the packed weights
            self.settle()
        return self._adapters.pack(weights)

    def _emitted(
        self,
        model: Model,
        kept_layers: Sequence[int] = (),
        adapters: AdapterSettings | None = None,
        features: HiddenStates | None = None,
    ) -> Emitted:
        listing = record(model)
        keep_hidden(listing, kept_layers)
        if features is not None:
            from octavo.program.passes.features import keep_features

            keep_features(listing, features)
        program = _native.Program(self.tier, self._team, self._sums)
        adapted = None
        if adapters is not None:
            adapted = self._adapt(listing, model, adapters)
            program.make_adapter_slots(adapters.slots)
        listing = self._rewritten(listing, model)
        refuse_unsupported(listing)
        in_ranks = self.ranks is not None and self._sums is None
        emitter = Emitter(program, self.tier, self._packer.parameter, adapted, in_ranks=in_ranks)
        barriers = emitter.emit(listing)
        if self._options.owners is not None:
            program.copy_experts_after(self._options.owners.step_interval)
        return Emitted(model, program, listing, barriers)

    def _rewritten(self, listing: Listing, model: Model) -> Listing:
        """Return what this process computes of a listing, in the form that is emitted."""
        rewrite(listing, PASSES)
        return listing

    def _adapt(
        self, listing: Listing, model: Model, settings: AdapterSettings
    ) -> Mapping[int, int]:
        """Let adapters change the products; return the number of each packed matrix, by its id."""
        from octavo.backends.adapters import adapt
        from octavo.backends.native.adapters.packer import AdapterPacker

        products = adapt(listing, model, settings)
        options = self._options
        weights = "bf16" if settings.dtype == "bfloat16" else options.weights
        new_packer = partial(
            Packer, self._team, weights, activations=options.activations, is_whole=True
        )
        self._adapters = AdapterPacker(
            model, products, settings, self._team, new_packer, self.read_rows
        )
        return self._adapters.numbers

    def piece(self, path: str, number: int) -> _native.Matrix:
        """Return a piece of the weight of a layer of the first model."""
        layer: Any = dict(self._first.model.walk())[path]
        found: _native.Matrix = layer.weight.pieces[number].native
        return found

    def read_rows(self, path: str, piece: int, first: int, count: int) -> NDArray[np.float32]:
        """Return some rows of a weight as floats."""
        return self.piece(path, piece).rows(first, count)

    def _measure(self) -> None:
        """Find the fastest kernels of all formats, once the weights are loaded."""
        if self._file is not None:
            formats = [name for each in self._programs.values() for name in _formats(each.listing)]
            self._calibration = ProductCalibration(formats, self.tier, self._file)
            self._take_choices()

    def add_program(self, model: Model, owner: str) -> None:
        from octavo.backends.further import check_further

        assert self._layout is not None, "call prepare first"
        first = self._programs[""].model
        check_further(model, owner, first, self._layout[0], self._programs)
        self._packer.begin()
        self._is_settled = False
        for number, each in enumerate(model.programs):
            made = self._emitted(each)
            if each.draft_block is not None:
                made.program.set_block(*each.draft_block)
            self._programs[owner if number == 0 else f"{owner} {number}"] = made
            self._ready.add_program(owner, made.program)
        self._measure()

    def calibrate(self) -> None:
        """Finish the measurement of kernels, which otherwise takes effect when it is done."""
        self.settle()
        while self._calibration is not None:
            self._take_choices()
            time.sleep(_POLL_SECONDS)

    def _take_choices(self) -> None:
        """Compute products as was measured, if that is known; bits do not depend on it."""
        calibration = self._calibration
        assert calibration is not None
        is_over = calibration.take()
        if calibration.choices == self.choices and not is_over:
            return
        self.choices = dict(calibration.choices)
        for format_, choices in self.choices.items():
            for choice in choices:
                self.use_kernels(format_, choice)
        if is_over:
            self._calibration = None
            if self._file is not None:
                self._file.close()

    @property
    def native_programs(self) -> list[_native.Program]:
        """The programs of all models."""
        return [each.program for each in self._programs.values()]

    def use_kernels(self, format_: str, choice: Choice) -> None:
        """Compute the products of a format, for one class of rows, as was measured to be best."""
        kind = getattr(_native.Format, format_)
        for each in self._programs.values():
            each.program.choose(kind, choice.row_class, choice.tier, choice.ahead)

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        return self._reserve_rows(size) + self._ready.reserve(size.wanted_rows, size.rows)

    def _reserve_rows(self, size: StepSize) -> int:  # without the results of a step
        more = size.sequences, size.positions
        step_bytes = self._recorded.reserve(size.rows, size.wanted_rows, size.rows, *more)
        return step_bytes + self._ready.reserve_further(size.rows, *more)

    def make_cache(self, num_blocks: int) -> None:
        assert self._layout is not None, "call prepare first"
        layout, block_size = self._layout
        groups, page_bytes = self._cache_groups(layout, block_size)
        kept_as = getattr(_native.CacheFormat, KV_FORMATS[self._options.kv_dtype].name)
        cache = _native.KvCache(kept_as, groups, num_blocks, page_bytes, block_size, self._team)
        if self._options.preallocates_kv:
            cache.take(self._team)
        self._ready.use_cache(cache)
        self._cache = cache

    def _cache_groups(
        self, layout: KVLayout, block_size: int
    ) -> tuple[list[_native.CacheGroup], int]:
        return cache_groups(layout, block_size, self._options.kv_dtype)

    @property
    def cache(self) -> _native.KvCache | None:
        """The KV cache, once it is made."""
        return self._cache

    @property
    def _first(self) -> Emitted:
        assert self._programs, "call prepare first"
        return self._programs[""]

    @property
    def _recorded(self) -> _native.Program:
        return self._first.program

    @property
    def _ready(self) -> _native.StepRunner:
        assert self._runner is not None, "call prepare first"
        return self._runner

    def block_bytes(self, group: int) -> int:
        assert self._cache is not None, "call make_cache first"
        return self._cache.saved_bytes(group)

    def step(self, batch: HostBatch, draws: Draws) -> Pending:
        if self._adapters is None:
            refuse_adapters(batch)
        if not self._is_settled:
            self.settle()
        if self._calibration is not None:
            self._take_choices()
        if self._unfinished is not None:
            self._unfinished.finish()
            self._unfinished = None
        for slot in draws.freed:
            self._processed.pop(slot, None)
        for slot, sampling in draws.opened:
            if sampling.processors:
                prompt = sampling.tokens[: sampling.num_prompt].copy()
                self._processed[slot] = sampling.processors, prompt
                self._warn_of_processors()
        gate = None
        if draws.masks is not None:
            gate = _native.MaskGate()
            draws.masks.when_ready(gate.open)
        step = self._ready.submit(batch, draws, gate)
        if self._processed and not self._processed.keys().isdisjoint(draws.slots.tolist()):
            self._unfinished = ProcessedPending(step, draws, dict(self._processed))
            return self._unfinished
        return NativePending(step)

    def _warn_of_processors(self) -> None:
        if not self._has_warned:
            self._has_warned = True
            _log.warning(
                "a request brings logits processors: each of its tokens, and those of all requests "
                "beside it, wait for Python"
            )

    def forward(self, batch: HostBatch) -> ForwardResult:
        self.step(batch, _NO_DRAWS).collect()
        logits, hidden, *kept = self._ready.results()
        return ForwardResult(logits, hidden, tuple(kept))

    # for people and tests

    def describe(self) -> str:
        """Return the program as text, one line for each instruction."""
        from octavo.program.describe import describe

        return describe(self._first.listing, self.barriers)

    def profile(self, on: bool) -> None:
        """Start (or stop) measuring each instruction, and forget earlier measurements."""
        self._recorded.set_profiling(on)

    @property
    def instructions(self) -> list[Instruction]:
        return self._first.listing.instructions

    @property
    def barriers(self) -> frozenset[int]:
        """The numbers of the instructions before which all threads wait for each other."""
        return self._first.barriers

    def timings(self) -> tuple[list[float], list[float]]:
        """Return the caller's seconds in each instruction, and those of waiting before it."""
        return self._recorded.seconds, self._recorded.waits

    def read_rate(self, seconds: float) -> float:
        """Measure the bytes a second at which a loop reads the weights of all products at best.

        The loop reads what a step reads: other memory would be in the caches more or less often.
        """
        from octavo.backends.native.work import product_weights

        return _native.read_rate(self.tier, self._team, product_weights(self.instructions), seconds)

    def peak_rates(self, read: float, seconds: float) -> PeakRates:
        """Measure what this machine computes at best, each rate for so long; `read` is known."""
        rates = [
            _native.operation_rate(self.tier, self._team, products, seconds)
            for products in (_native.Products.Int8, _native.Products.Bf16, _native.Products.Float)
        ]
        return PeakRates(read, *rates)
