"""The plain backend of a card: the reference's operations there, as simply as possible."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from octavo.backends.adapter_weights import AdapterSettings, AdapterWeights
from octavo.backends.base import KVLayout, KVPages, StepSize
from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.batch import DeviceBatch
from octavo.backends.cuda.exchange import DeviceCommunicator
from octavo.backends.cuda.footprint import draw_bytes
from octavo.backends.cuda.graph_batch import GraphBatch, refusal
from octavo.backends.cuda.graphs import DecodeGraphs
from octavo.backends.cuda.meanings import DEVICE_MEANINGS
from octavo.backends.cuda.products import (
    Rounding,
    ScaledExperts,
    reads_codes,
    scaled_matrix,
    trial_fault,
)
from octavo.backends.cuda.providers import Facts, report, select, select_copies, select_product
from octavo.backends.cuda.sampler import DeviceRows, DeviceSampler, signed_keys
from octavo.backends.cuda.steady import DevicePending, Drawing, Drawings, SteadyDraws
from octavo.backends.cuda.weights import put, put_codes
from octavo.backends.eight_bit_rows import scale_group
from octavo.backends.select import NoBackendError
from octavo.backends.step import Copies, Draws, HostBatch, Pending, StepOutput, refuse_adapters
from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch import eight_bits
from octavo.backends.torch.adapters import TorchAdapter, TorchChange
from octavo.backends.torch.attention import AdapterSlots, Buffers, buffers_in
from octavo.backends.torch.backend import NO_FLOATS, TorchBackend
from octavo.backends.torch.footprint import kept_bytes, kv_pages
from octavo.backends.torch.interpreter import Interpreter, Meaning
from octavo.backends.torch.largest_step import largest_batch
from octavo.backends.torch.weights import TorchExperts, TorchMatrix
from octavo.layers import GateUpLinear, Linear, Model, Module
from octavo.program.listing import Instruction
from octavo.program.passes.attention import take_into_attention
from octavo.program.passes.norms import norm_while_adding
from octavo.program.passes.prepare import prepare_products, prepare_while_making

log = logging.getLogger(__name__)


class CudaBackend(TorchBackend):
    """A backend whose tensors are on a card; implements `octavo.backends.base.LogitsBackend`.

    In a step the host submits all work, waits once, and gets tokens rather than logits.
    """

    _batches = DeviceBatch
    _graph_batches = GraphBatch
    _meanings = DEVICE_MEANINGS

    def __init__(
        self,
        accelerator: Accelerator,
        dtype: str = "float32",
        *,
        has_kernels: bool = False,
        captures: bool = False,
        communicator: DeviceCommunicator | None = None,
        activations: str = "dtype",
        has_short_kv: bool = False,
    ) -> None:
        super().__init__(dtype, communicator, activations=activations, has_short_kv=has_short_kv)
        self._others = communicator
        self._captures = captures
        self._size: StepSize | None = None  # of the largest step, for which graphs have room
        self._graphs: DecodeGraphs | None = None
        self._steady: SteadyDraws | None = None  # of the last step, if the next may continue it
        self._drawings = Drawings()
        self._accelerator = self._home = accelerator
        self._sampler: DeviceSampler
        self._facts = Facts.of(accelerator, dtype, asks_for_kernels=has_kernels)
        self._rounding: Rounding = eight_bits.rounded
        self._refusals: dict[tuple[int, int, bool], str] = {}  # of products of eight bits
        if self._facts.has_kernels:
            from octavo.backends.cuda.kernels.rounding import rounded
            from octavo.backends.cuda.kernels.sampler import KernelSampler

            self._passes = (take_into_attention,)
            round_apart = partial(prepare_products, reads_prepared=reads_codes)
            self._last_passes = (norm_while_adding, round_apart, prepare_while_making)
            self._sampler = KernelSampler(accelerator)
            self._rounding = partial(rounded, accelerator)
        else:
            self._sampler = DeviceSampler(accelerator)
        norms = select("Norm", self._facts)
        by = "kernels" if norms.is_kernel else "operations of torch"
        log.info("computing on %s, by %s: %s", accelerator.name, by, norms.reason)

    def _program(self, model: Model, *given: Any, **named: Any) -> Interpreter:
        made = super()._program(model, *given, **named)
        report(made.instructions, self._facts)
        return made

    def _meaning_of(self, instruction: Instruction) -> Meaning:
        plain = self._meanings[instruction.op]
        if not select(instruction.op, self._facts, instruction).is_kernel:
            return plain
        from octavo.backends.cuda.kernels.meanings import KERNEL_MEANINGS

        return KERNEL_MEANINGS.get(instruction.op, plain)

    def parameter(self, array: NDArray[Any]) -> Tensor:
        with self._accelerator.working():
            (copied,) = self._accelerator.upload([array])
            return self._counted(copied.to(self.dtype))

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> TorchMatrix:
        made = self._stacked([parts], module).matrix(0)
        made = dataclasses.replace(made, gated=isinstance(module, GateUpLinear))
        with self._accelerator.working():
            return scaled_matrix(made, self._rounding) if self._multiplies(made) else made

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> TorchExperts:
        made = self._stacked(matrices, module)
        with self._accelerator.working():
            if not self._multiplies(made.matrix(0)):
                return made
        return ScaledExperts(made.values, made.kind, made.scales, made.group, self._rounding)

    def _multiplies(self, made: TorchMatrix) -> bool:
        """Return whether the card itself multiplies the codes of a matrix, if it has codes.

        It cannot where rows stay as they are, or inputs of a row have several scales.
        """
        if made.scales is None or made.kind == "float":
            return False
        shape, is_static = (made.outputs, made.inputs), made.kind != "fp8"
        key = *shape, is_static
        if key not in self._refusals:
            home = self._accelerator
            provider, why = select_product(*shape, self._facts)[1:]
            if provider == "scaled_mm":
                why = trial_fault(*shape, home, is_static=is_static)
            self._refusals[key] = why
            if why:
                kind = self._dtype_name
                log.info("products of FP8 [%d, %d] are computed in %s: %s", *shape, kind, why)
        return not self._refusals[key]

    def _stacked(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> TorchExperts:
        """Return matrices of one shape, which stay in eight bits if they are stored so."""
        first, home = matrices[0], self._accelerator
        shape = (len(matrices), sum(map(len, first)), first[0].inputs)
        parts = [part for each in matrices for part in each]
        group = scale_group(parts) if isinstance(module, Linear) else 0
        scales: Tensor | None = None
        with home.working():
            if group:
                values = torch.empty(shape, dtype=eight_bits.CODES, device=home.device)
                scales = torch.empty(*shape[:2], -(-shape[2] // group), device=home.device)
                for number, each in enumerate(matrices):
                    put_codes(values[number], scales[number], each, group, home)
            else:
                values = torch.empty(shape, dtype=self.dtype, device=home.device)
                for target, each in zip(values, matrices, strict=True):
                    put(target, each, home)
            made = TorchExperts(values, self._form_of(matrices, module), scales, group)
            made.matrix(0).prove_shapes(self.dtype)
            self._counted(values)
            if scales is not None:
                self._counted(scales)
            return made

    def _counted(self, made: Tensor) -> Tensor:
        self.weight_bytes += made.nbytes
        return made

    def _empty_slots(self, adapters: AdapterSettings) -> AdapterSlots:
        if not select("Shrink", self._facts).is_kernel:
            return super()._empty_slots(adapters)
        from octavo.backends.cuda.kernels.adapter_slots import SlotTables

        return SlotTables(self._adapted, adapters.slots, self.dtype, self._accelerator)

    def adapter(self, weights: AdapterWeights) -> TorchAdapter:
        with self._accelerator.working():
            return super().adapter(weights)

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        """Measure the largest forward pass by running it, and add what the draws take."""
        assert self._layout is not None, "prepare must be called first"
        self._size = None
        self._new_cache(1)
        batch = largest_batch(size, self._block_size, len(self._layout.windows))
        batch = self._with_adapter(batch)
        measured = self._thread.submit(self._growth, batch).result()
        if self._facts.has_kernels:
            self._compile_what_is_left(size)
        if self._adapters is not None:
            self._adapter_slots = self._empty_slots(self._adapters)
        if self._is_captured(size):
            self._size = size
            before = self._accelerator.forget_peak()
            self._begin_graphs()
            measured += self._accelerator.peak_bytes() - before
        self._buffers = self._graphs = None
        log.info("the largest step, of %d tokens, took %d bytes more", size.rows, measured)
        # What the step keeps for long sequences is known, and would take long to compute.
        return measured + kept_bytes(size) + draw_bytes(size)

    def _is_captured(self, size: StepSize) -> bool:
        """Return whether the steps that only decode are captured, and say why if they are not."""
        if not self._captures:
            return False
        why = self._graph_refusal()
        if why is not None:
            log.info("decode steps are not captured as graphs: %s", why)
        return why is None and size.vocabulary > 0

    def _graph_refusal(self) -> str | None:
        assert self._interpreter is not None
        return refusal(self._interpreter.instructions, self._facts)

    def _begin_graphs(self) -> None:
        """Make the first graphs, in the thread of the steps; the others follow when needed."""
        assert self._size is not None
        interpreter, buffers = self._ready
        self._graphs = DecodeGraphs(
            *(self._accelerator, interpreter, buffers, self._sampler, self._size),
            self._graph_batches,
            self._others,
        )
        try:
            self._thread.submit(self._graphs.capture_first).result()
        except RuntimeError as error:
            raise NoBackendError(
                f"decode steps cannot be captured as graphs on {self._accelerator.name}: {error}; "
                "with enforce_eager=True (--enforce-eager) there are none"
            ) from error

    def _compile_what_is_left(self, size: StepSize) -> None:
        """Run what the largest step may lack: a prompt, a row alone, further programs, and draws.

        Kernels are compiled when they first run, by a program that a confined process cannot start.
        """
        assert self._layout is not None, "prepare must be called first"
        for rows in {min(2, size.rows), 1}:
            few = replace(size, rows=rows, sequences=1, wanted_rows=1)
            batch = largest_batch(few, self._block_size, len(self._layout.windows))
            batch = self._with_adapter(batch._replace(copies=((0, 0, 0),)))
            self._thread.submit(self._rehearse, batch).result()
        if size.vocabulary:
            with self._accelerator.working():
                self._sampler.rehearse(size.vocabulary)

    def _with_adapter(self, batch: HostBatch) -> HostBatch:
        """Give all rows an adapter that changes nothing, if kernels add what adapters make."""
        if self._adapters is None or not select("Shrink", self._facts).is_kernel:
            return batch
        nothing = TorchAdapter((TorchChange(),) * len(self._adapted))
        slots = np.zeros(len(batch.token_ids), np.int32)
        return batch._replace(adapters=slots, adapter_slots=((0, nothing, 1.0),))

    def _rehearse(self, batch: HostBatch) -> None:
        """Run all programs with the same rows, each of which follows the first row of logits."""
        self.forward(batch)
        for programs in self._further.values():
            for number in range(len(programs)):
                self._compute(programs, number, batch, np.zeros(len(batch.token_ids), np.int32))

    def _copy(self, buffers: Buffers, copies: Copies) -> None:
        sizes = [buffers.block_bytes(group) for group in range(len(buffers.blocks))]
        if not select_copies(sizes, self._facts).is_kernel:
            super()._copy(buffers, copies)
            return
        from octavo.backends.cuda.kernels.copies import copy_in

        copy_in(buffers, copies, self._accelerator)

    def _growth(self, batch: HostBatch) -> int:
        """Return by how many bytes the tensors grow while a batch is computed and fetched."""
        before = self._accelerator.forget_peak()
        self.forward(batch)
        return self._accelerator.peak_bytes() - before

    def make_cache(self, num_blocks: int) -> None:
        self._new_cache(num_blocks)

    def _new_cache(self, num_blocks: int) -> None:
        layout, pages = self._cache_layout()
        # Two caches might not fit, and graphs keep theirs.
        self._buffers = self._graphs = self._steady = None
        home, size, is_short = self._accelerator, self._block_size, self._has_short_kv
        with home.working():
            num_bytes = num_blocks * pages.page_bytes
            pool = torch.zeros(num_bytes, dtype=torch.uint8, device=home.device)
            self._buffers = buffers_in(
                pool, layout, pages, size, self.dtype, home, has_short_kv=is_short
            )
        if self._size is not None:
            self._begin_graphs()

    def _cache_layout(self) -> tuple[KVLayout, KVPages]:
        """Return what the cache of this process keeps, and the pages that hold it."""
        assert self._layout is not None, "prepare must be called first"
        size, dtype, is_short = self._block_size, self._dtype_name, self._has_short_kv
        return self._layout, kv_pages(self._layout, size, dtype, has_short_kv=is_short)

    @property
    def num_threads(self) -> int:
        return 1  # the host's, which submits the work

    def step(self, batch: HostBatch, draws: Draws) -> Pending:
        if self._adapters is None:
            refuse_adapters(batch)
        return DevicePending(self._thread.submit(self._begin, batch, draws), self._drawings)

    def _begin(self, batch: HostBatch, draws: Draws) -> StepOutput | Drawing:
        """Submit a step that continues the last one, or compute another one to its end."""
        steady, graphs = self._steady, self._graphs
        if (
            steady is not None
            and graphs is not None
            and steady.continues(batch, draws)
            and graphs.takes(batch, draws)
        ):
            with self._home.step():
                return self._continue(steady, graphs, batch, draws)
        self._drawings.finish()
        self._steady = None
        return self._run(batch, draws)

    def _continue(
        self, steady: SteadyDraws, graphs: DecodeGraphs, batch: HostBatch, draws: Draws
    ) -> Drawing:
        """Submit a step whose tokens the device has, and wait for nothing."""
        temperatures, keys = steady.temperatures, steady.next_keys()
        logits, tokens = graphs.run(batch, temperatures, keys, steady.filters, continues=True)

        def finish(drawn: NDArray[np.int64]) -> StepOutput:
            self._check_exchanges()
            if drawn.min() >= 0:
                return StepOutput(steady.append(drawn))
            none, rows = np.empty(logits.shape, np.float32), range(len(drawn))
            return self._sampler.finish_with(draws, none, NO_FLOATS, rows, drawn.tolist())

        return self._drawings.add(Drawing(self._accelerator.begin_fetch([tokens]), finish))

    def _drawn(self, batch: HostBatch, draws: Draws) -> StepOutput:
        """Compute a batch, by a graph if that is possible, and draw."""
        if self._graphs is not None and self._graphs.takes(batch, draws):
            return self._replayed(self._graphs, batch, draws)
        outputs = self._outputs(batch)
        if outputs is None:
            return self._sampler.finish(draws, NO_FLOATS, NO_FLOATS)
        found, logits = self._sampler.split(draws), outputs.logits.float()
        drawn = self._sampler.draw_there(logits, found, draws) if found.rows else None
        return self._fetched(draws, found, logits, drawn, outputs.hidden.float())

    def _replayed(self, graphs: DecodeGraphs, batch: HostBatch, draws: Draws) -> StepOutput:
        """Replay a graph, whose draws are used unless some rows are drawn in another way."""
        self._change(batch)
        found = self._sampler.split(draws)
        if draws.masks is None and not found.fetched and not found.have_rules:
            temperatures, keys = found.temperatures(), signed_keys(found.keys)
            logits, tokens = graphs.run(batch, temperatures, keys, found.filters())
            output = self._fetched(draws, found, logits, tokens, None)
            if not output.failures:
                slots = [self._sampler.slots[number] for number in draws.slots.tolist()]
                self._steady = SteadyDraws(draws.slots, slots)
            return output
        logits, _ = graphs.run(batch, (), signed_keys(()))
        drawn = self._sampler.draw_there(logits, found, draws) if found.rows else None
        return self._fetched(draws, found, logits, drawn, None)

    def _check_exchanges(self) -> None:
        """Refuse what the host has waited for, if an exchange behind it brought nothing."""
        if self._others is not None:
            self._others.check()

    def _fetched(
        self,
        draws: Draws,
        found: DeviceRows,
        logits: Tensor,
        drawn: Tensor | None,
        hidden: Tensor | None,
    ) -> StepOutput:
        """Fetch everything at once, and compute the rest here."""
        wanted = [each for each in (hidden, drawn) if each is not None]
        if found.fetched:
            (rows,) = self._home.upload([np.array(found.fetched, np.int64)])
            wanted.append(logits[rows])
        on_host = self._home.fetch(wanted)
        self._check_exchanges()
        states = NO_FLOATS if hidden is None else on_host.pop(0)
        tokens = [] if drawn is None else on_host.pop(0).tolist()
        # Nothing depends on rows that are not fetched, and their memory is hardly ever touched.
        rows_on_host = np.empty(logits.shape, np.float32)
        if found.fetched:
            rows_on_host[found.fetched] = on_host[0]
        return self._sampler.finish_with(draws, rows_on_host, states, found.rows, tokens)
