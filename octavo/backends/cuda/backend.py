"""The plain backend of a card: the reference's operations there, as simply as possible."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from octavo.backends.adapter_weights import AdapterWeights
from octavo.backends.base import StepSize
from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.batch import DeviceBatch
from octavo.backends.cuda.footprint import draw_bytes
from octavo.backends.cuda.meanings import DEVICE_MEANINGS
from octavo.backends.cuda.sampler import DeviceSampler
from octavo.backends.cuda.weights import put
from octavo.backends.step import Draws, HostBatch, StepOutput
from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch import ops
from octavo.backends.torch.adapters import TorchAdapter
from octavo.backends.torch.attention import buffers_in
from octavo.backends.torch.backend import NO_FLOATS, TorchBackend
from octavo.backends.torch.footprint import kept_bytes, kv_pages
from octavo.backends.torch.largest_step import largest_batch
from octavo.backends.torch.weights import TorchExperts, TorchMatrix
from octavo.layers import GateUpLinear, Module
from octavo.program.passes.attention import take_into_attention

log = logging.getLogger(__name__)


class CudaBackend(TorchBackend):
    """A backend whose tensors are on a card; implements `octavo.backends.base.LogitsBackend`.

    In a step the host submits all work, waits once, and gets tokens rather than logits.
    """

    _batches = DeviceBatch
    _meanings = DEVICE_MEANINGS

    def __init__(
        self, accelerator: Accelerator, dtype: str = "float32", *, has_kernels: bool = False
    ) -> None:
        super().__init__(dtype)
        self._accelerator = self._home = accelerator
        self._sampler: DeviceSampler
        self._has_kernels = has_kernels
        if has_kernels:
            from octavo.backends.cuda.kernels.meanings import KERNEL_MEANINGS
            from octavo.backends.cuda.kernels.sampler import KernelSampler

            self._meanings, self._passes = KERNEL_MEANINGS, (take_into_attention,)
            self._sampler = KernelSampler(accelerator)
        else:
            self._sampler = DeviceSampler(accelerator)
        by = "kernels" if has_kernels else "operations of torch"
        log.info("computing on %s, by %s", accelerator.name, by)

    def parameter(self, array: NDArray[Any]) -> Tensor:
        with self._accelerator.working():
            (copied,) = self._accelerator.upload([array])
            return self._counted(copied.to(self.dtype))

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> TorchMatrix:
        return TorchMatrix(self._stacked([parts])[0], isinstance(module, GateUpLinear))

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> TorchExperts:
        return TorchExperts(self._stacked(matrices))

    def _stacked(self, matrices: Sequence[Sequence[StoredRows]]) -> Tensor:
        """Return matrices of one shape as a tensor [matrices, outputs, inputs]."""
        first = matrices[0]
        shape = (len(matrices), sum(map(len, first)), first[0].inputs)
        with self._accelerator.working():
            values = torch.empty(shape, dtype=self.dtype, device=self._accelerator.device)
            for target, parts in zip(values, matrices, strict=True):
                put(target, parts, self._accelerator)
            ops.prove_shapes(values[0])
            return self._counted(values)

    def _counted(self, made: Tensor) -> Tensor:
        self.weight_bytes += made.nbytes
        return made

    def adapter(self, weights: AdapterWeights) -> TorchAdapter:
        with self._accelerator.working():
            return super().adapter(weights)

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        """Measure the largest forward pass by running it, and add what the draws take."""
        assert self._layout is not None, "prepare must be called first"
        self.make_cache(1)
        batch = largest_batch(size, self._block_size, len(self._layout.windows))
        measured = self._thread.submit(self._growth, batch).result()
        if self._has_kernels:
            self._compile_what_is_left(size)
        self._buffers = None
        log.info("the largest step, of %d tokens, took %d bytes more", size.rows, measured)
        # What the step keeps for long sequences is known, and would take long to compute.
        return measured + kept_bytes(size) + draw_bytes(size)

    def _compile_what_is_left(self, size: StepSize) -> None:
        """Run what the largest step may lack: a prompt, a row alone, further programs, and draws.

        Kernels are compiled when they first run, by a program that a confined process cannot start.
        """
        assert self._layout is not None, "prepare must be called first"
        for rows in {min(2, size.rows), 1}:
            few = replace(size, rows=rows, sequences=1, wanted_rows=1)
            batch = largest_batch(few, self._block_size, len(self._layout.windows))
            self._thread.submit(self._rehearse, batch).result()
        if size.vocabulary:
            with self._accelerator.working():
                self._sampler.rehearse(size.vocabulary)

    def _rehearse(self, batch: HostBatch) -> None:
        """Run all programs with the same rows, each of which follows the first row of logits."""
        self.forward(batch)
        for programs in self._further.values():
            for number in range(len(programs)):
                self._compute(programs, number, batch, np.zeros(len(batch.token_ids), np.int32))

    def _growth(self, batch: HostBatch) -> int:
        """Return by how many bytes the tensors grow while a batch is computed and fetched."""
        before = self._accelerator.forget_peak()
        self.forward(batch)
        return self._accelerator.peak_bytes() - before

    def make_cache(self, num_blocks: int) -> None:
        layout = self._layout
        assert layout is not None, "prepare must be called first"
        self._buffers = None  # two caches might not fit
        page_bytes = kv_pages(layout, self._block_size, self._dtype_name).page_bytes
        home = self._accelerator
        with home.working():
            pool = torch.zeros(num_blocks * page_bytes, dtype=torch.uint8, device=home.device)
            self._buffers = buffers_in(pool, layout, self._block_size, self.dtype, home)

    @property
    def num_threads(self) -> int:
        return 1  # the host's, which submits the work

    def _drawn(self, batch: HostBatch, draws: Draws) -> StepOutput:
        """Draw what the device draws, fetch everything at once, and compute the rest here."""
        outputs = self._outputs(batch)
        if outputs is None:
            return self._sampler.finish(draws, NO_FLOATS, NO_FLOATS)
        logits, found = outputs.logits.float(), self._sampler.split(draws)
        wanted = [outputs.hidden.float()]
        if found.rows:
            wanted.append(self._sampler.draw_there(logits, found, draws))
        if found.fetched:
            (rows,) = self._home.upload([np.array(found.fetched, np.int64)])
            wanted.append(logits[rows])
        hidden, *others = self._home.fetch(wanted)
        drawn = others.pop(0).tolist() if found.rows else []
        # Nothing depends on rows that are not fetched, and their memory is hardly ever touched.
        on_host = np.empty(logits.shape, np.float32)
        if found.fetched:
            on_host[found.fetched] = others[0]
        return self._sampler.finish_with(draws, on_host, hidden, found, drawn)
