"""The reference backend: runs a bound model with torch on the CPU, as simply as possible."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.backends.adapter_weights import AdapterSettings, AdapterWeights
from octavo.backends.adapters import adapt, check_adapter
from octavo.backends.base import Arithmetic, Floats, ForwardResult, Ints, KVLayout, StepSize
from octavo.backends.further import check_further
from octavo.backends.step import (
    NO_ADAPTERS,
    Copies,
    Draws,
    HostBatch,
    NoAdaptersError,
    Pending,
    StepOutput,
    refuse_adapters,
)
from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch.adapters import TorchAdapter, TorchAdapters
from octavo.backends.torch.attention import AdapterSlots, Buffers, TorchBatch, make_buffers
from octavo.backends.torch.device import HOST, TensorDevice
from octavo.backends.torch.footprint import TorchFootprint, kept_bytes
from octavo.backends.torch.interpreter import MEANINGS, Interpreter, Meaning, Outputs
from octavo.backends.torch.largest_step import largest_batch, peak_growth
from octavo.backends.torch.sampling.ahead import propose, propose_block
from octavo.backends.torch.sampling.step_sampler import StepSampler
from octavo.backends.torch.weights import TorchExperts, TorchMatrix, rounded_form
from octavo.distributed.communicator import Communicator
from octavo.layers import DraftBlock, GateUpLinear, HiddenStates, Linear, Model, Module
from octavo.program.listing import Instruction, Op
from octavo.program.operands import Adapters
from octavo.program.passes.collectives import insert_collectives
from octavo.program.passes.features import keep_features
from octavo.program.passes.fusion import Pass, rewrite
from octavo.program.passes.kept_hidden import keep_hidden
from octavo.program.recorder import record

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
# A step is not measured if its estimate times this factor fits in the memory that is left over:
# the measurement would decide nothing.
_ESTIMATE_FACTOR = 2
NO_FLOATS = np.zeros((0, 0), np.float32)


def _take_number_of_threads() -> None:
    """Set the number that torch was given: a new thread's libraries start with one for each core.

    `get_num_threads` is the number of the process, once it has been set in any thread.
    """
    torch.set_num_threads(torch.get_num_threads())


class TorchPending:
    """A step in the backend's thread; implements `octavo.backends.step.Pending`."""

    def __init__(self, future: Future[StepOutput]) -> None:
        self._future = future

    def done(self) -> bool:
        return self._future.done()

    def collect(self) -> StepOutput:
        return self._future.result()


class TorchBackend:
    """The backend that defines the meaning; implements `octavo.backends.base.LogitsBackend`.

    Its steps run in one thread of their own, where torch computes without the GIL.
    """

    can_continue = False
    # Another device may give these another form.
    _batches = TorchBatch
    _meanings: Mapping[Op, Meaning] = MEANINGS
    _passes: tuple[Pass, ...] = ()
    _last_passes: tuple[Pass, ...] = ()  # when everything else has been added to the listing

    def __init__(
        self,
        dtype: str = "float32",
        communicator: Communicator[Any] | None = None,
        *,
        activations: str = "dtype",
        has_short_kv: bool = False,
    ) -> None:
        """Begin with no model.

        Products with FP8 weights read rows as they are, or by `activations` rows of FP8, as cards
        multiply them: "dynamic", with a scale of each row, or "static", with that of the file. With
        `has_short_kv`, keys and values are kept in eight bits.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        self.dtype, self._dtype_name = DTYPES[dtype], dtype
        self._activations, self._has_short_kv = activations, has_short_kv
        self.weight_bytes = 0
        self.arithmetic = Arithmetic()  # torch chooses by itself
        self._communicator = communicator  # if several ranks share the model
        self._home: TensorDevice = HOST
        self._model: Model | None = None
        self._interpreter: Interpreter | None = None
        self._further: dict[str, list[Interpreter]] = {}  # by owner: for each of its steps
        self._blocks: dict[str, DraftBlock | None] = {}
        self._states: Tensor | None = None  # those from which the running step draws, if read
        self._layout: KVLayout | None = None
        self._block_size = 0
        self._buffers: Buffers | None = None
        self._adapters: AdapterSettings | None = None  # if rows may have adapters
        self._adapted: list[Adapters] = []  # the products that these change
        self._adapter_slots: AdapterSlots = {}
        self._sampler = StepSampler()
        # It starts with the first step.
        self._thread = ThreadPoolExecutor(1, "octavo torch", initializer=_take_number_of_threads)

    def maker(self, owner: str) -> TorchBackend:
        return self

    def parameter(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array).to(self.dtype)
        self.weight_bytes += tensor.nbytes
        return tensor

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> TorchMatrix:
        values = self.parameter(np.concatenate([part.floats() for part in parts]))
        return TorchMatrix(values, isinstance(module, GateUpLinear), self._form_of([parts], module))

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> TorchExperts:
        values = [np.concatenate([part.floats() for part in parts]) for parts in matrices]
        return TorchExperts(self.parameter(np.stack(values)), self._form_of(matrices, module))

    def _form_of(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> str:
        """Return the form of the rows that a projection's products read."""
        if self._activations == "dtype" or not isinstance(module, Linear):  # a table has no rows
            return "float"
        return rounded_form(matrices, is_static=self._activations == "static")

    def prepare(
        self,
        model: Model,
        layout: KVLayout,
        block_size: int,
        kept_layers: Sequence[int] = (),
        adapters: AdapterSettings | None = None,
        features: HiddenStates | None = None,
    ) -> None:
        if adapters is not None and self._communicator is not None:
            raise NoAdaptersError(f"{NO_ADAPTERS} where several ranks share a model")
        self._adapters, self._adapter_slots = adapters, {}
        self._interpreter = self._program(model, kept_layers, adapters, features)
        if adapters is not None:
            self._adapter_slots = self._empty_slots(adapters)
        self._model, self._further = model, {}
        self._layout, self._block_size = layout, block_size

    def _empty_slots(self, adapters: AdapterSettings) -> AdapterSlots:
        return {}

    def adapter(self, weights: AdapterWeights) -> TorchAdapter:
        if self._adapters is None:
            raise NoAdaptersError(NO_ADAPTERS)
        assert self._model is not None
        check_adapter(weights, self._adapted, self._adapters, self._model)
        return TorchAdapters(self._model, self._adapted, self.dtype, self._home).make(weights)

    def add_program(self, model: Model, owner: str) -> None:
        assert self._layout is not None, "prepare must be called first"
        assert self._model is not None
        check_further(model, owner, self._model, self._layout, self._further)
        self._further[owner] = [self._program(each) for each in model.programs]
        self._blocks[owner] = model.draft_block

    def _program(
        self,
        model: Model,
        kept_layers: Sequence[int] = (),
        adapters: AdapterSettings | None = None,
        features: HiddenStates | None = None,
    ) -> Interpreter:
        listing = record(model)
        rewrite(listing, self._passes)
        keep_hidden(listing, kept_layers)
        if features is not None:
            keep_features(listing, features)
        if adapters is not None:
            self._adapted = adapt(listing, model, adapters)
        if self._communicator is not None:
            insert_collectives(listing, model, self._communicator.context)
        rewrite(listing, self._last_passes)
        return Interpreter(listing, self._communicator, self._meaning_of)

    def _meaning_of(self, instruction: Instruction) -> Meaning:
        return self._meanings[instruction.op]

    def settle(self) -> None:
        pass  # weights are loaded synchronously

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        estimate = TorchFootprint(self._dtype_name).step_bytes(size)
        if _ESTIMATE_FACTOR * estimate <= spare_bytes:
            return estimate
        assert self._layout is not None, "prepare must be called first"
        log.info("memory is short: measuring the largest step, of %d tokens", size.rows)
        self.make_cache(1)
        batch = largest_batch(size, self._block_size, len(self._layout.windows))
        measured = self._thread.submit(peak_growth, partial(self.forward, batch)).result()
        self._buffers = None
        # What the step keeps for long sequences is known, and would take long to compute.
        return measured + kept_bytes(size)

    def make_cache(self, num_blocks: int) -> None:
        layout = self._layout
        assert layout is not None, "prepare must be called first"
        self._buffers = None  # two caches might not fit
        self._buffers = make_buffers(
            layout, num_blocks, self._block_size, self.dtype, has_short_kv=self._has_short_kv
        )

    @property
    def num_threads(self) -> int:
        return torch.get_num_threads()

    @property
    def _ready(self) -> tuple[Interpreter, Buffers]:
        assert self._interpreter is not None, "prepare must be called first"
        assert self._buffers is not None, "make_cache must be called first"
        return self._interpreter, self._buffers

    def block_bytes(self, group: int) -> int:
        return self._ready[1].block_bytes(group)

    def step(self, batch: HostBatch, draws: Draws) -> Pending:
        if self._adapters is None:
            refuse_adapters(batch)
        return TorchPending(self._thread.submit(self._run, batch, draws))

    def _run(self, batch: HostBatch, draws: Draws) -> StepOutput:
        with self._home.step():
            return self._step(batch, draws)

    def _step(self, batch: HostBatch, draws: Draws) -> StepOutput:
        self._sampler.change(draws)
        saved = self._ready[1].save(batch.saves) if batch.saves else ()
        output = self._draw(self._sampler.with_tokens(batch), draws)
        return output._replace(saved=saved) if saved else output

    def _draw(self, batch: HostBatch, draws: Draws) -> StepOutput:
        """Compute a batch with all its tokens, draw, and propose."""
        output = self._drawn(batch, draws)
        if len(draws.parents):
            self._keep_branches(batch, draws)
        if draws.ahead is None or not len(batch.token_ids):
            return output
        begun = time.perf_counter()
        owner = draws.ahead.owner
        run, block = partial(self._compute, self._further[owner]), self._blocks[owner]
        if block is None:
            proposals = propose(batch, draws, output, self._sampler, run)
        else:
            proposals = propose_block(batch, draws, output, self._sampler, block, run)
        return output._replace(proposals=proposals, ahead_seconds=time.perf_counter() - begun)

    def _drawn(self, batch: HostBatch, draws: Draws) -> StepOutput:
        """Compute a batch and draw."""
        logits, hidden, _ = self.forward(batch)
        return self._sampler.finish(draws, logits, hidden)

    def _keep_branches(self, batch: HostBatch, draws: Draws) -> None:
        """Copy the blocks of accepted branches of drafts to the places of the samples' own."""
        buffers = self._ready[1]
        copies: list[tuple[int, int, int]] = []
        for sample, walk in enumerate(self._sampler.walks):
            rows = [int(batch.logits_rows[draws.first_rows[sample] + row]) for row in walk]
            first, last = np.searchsorted(batch.row_starts, (rows[0], rows[-1]), side="right") - 1
            if first == last:
                continue
            num_blocks = int(batch.positions[rows[-1]]) // buffers.block_size + 1
            for group, table in enumerate(batch.tables):
                pairs = zip(table[last, :num_blocks], table[first, :num_blocks], strict=True)
                copies += [(int(a), int(b), group) for a, b in pairs if a != b]
        self._copy(buffers, tuple(copies))

    def _compute(
        self, programs: Sequence[Interpreter], number: int, batch: HostBatch, drawn_from: Ints
    ) -> Floats:
        """Write the KV of a further program's rows; return the logits of the wanted ones."""
        _, buffers = self._ready
        program = programs[min(number, len(programs) - 1)]
        with self._home.step():
            rows = self._batches.of(batch, buffers)
            if self._states is not None:
                (places,) = self._home.upload([drawn_from.astype(np.int64)])
                rows.given = self._states[places]
            (found,) = self._home.fetch([program.run(rows).logits.float()])
            return found

    def forward(self, batch: HostBatch) -> ForwardResult:
        with self._home.step():
            outputs = self._outputs(batch)
            if outputs is None:
                return ForwardResult(NO_FLOATS, NO_FLOATS)
            every = (outputs.logits, outputs.hidden, *outputs.kept)
            logits, hidden, *kept = self._home.fetch([each.float() for each in every])
            return ForwardResult(logits, hidden, tuple(kept))

    def _outputs(self, batch: HostBatch) -> Outputs | None:
        """Change slots and blocks, and run the program, unless the batch has no rows."""
        interpreter, buffers = self._ready
        self._change(batch)
        if not len(batch.token_ids):
            return None
        outputs = interpreter.run(self._batches.of(batch, buffers, self._adapter_slots))
        self._states = outputs.states
        return outputs

    def _change(self, batch: HostBatch) -> None:
        """Change slots of adapters, and copy and load blocks, before any row is computed."""
        buffers = self._ready[1]
        self._change_slots(batch)
        self._copy(buffers, batch.copies)
        for loaded in batch.loads:
            buffers.load(*loaded)

    def _copy(self, buffers: Buffers, copies: Copies) -> None:
        """Copy blocks, one after the other."""
        for copied in copies:
            buffers.copy(*copied)

    def _change_slots(self, batch: HostBatch) -> None:
        """Put adapters into their slots; steps run one after the other."""
        for slot, adapter, factor in batch.adapter_slots:
            if self._adapters is None or not 0 <= slot < self._adapters.slots:
                raise ValueError(f"there is no slot {slot} for adapters")
            if adapter is None:
                if slot in self._adapter_slots:
                    del self._adapter_slots[slot]
            else:
                self._adapter_slots[slot] = adapter, factor
