"""The reference backend: runs a bound model with torch on the CPU, as simply as possible."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.backends.base import ForwardResult, KVLayout, StepSize, StoredRows
from octavo.backends.step import Draws, HostBatch, StepOutput
from octavo.backends.torch.attention import Buffers, TorchBatch, make_buffers
from octavo.backends.torch.footprint import TorchFootprint, kept_bytes
from octavo.backends.torch.largest_step import largest_batch, peak_growth
from octavo.backends.torch.ops import TorchOps
from octavo.backends.torch.sampling.step_sampler import StepSampler
from octavo.layers import CausalLM, Module, Ops

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
# A step whose estimate fits so many times in what is left over is not measured: it decides nothing.
_ESTIMATE_FACTOR = 2
_NO_FLOATS = np.zeros((0, 0), np.float32)


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

    def __init__(self, dtype: str = "float32") -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        # The operations accept only this backend's own batches, which is narrower than Ops.
        self.ops: Ops = cast(Ops, TorchOps())
        self.dtype = DTYPES[dtype]
        self.weight_bytes = 0
        self._model: CausalLM | None = None
        self._layout: KVLayout | None = None
        self._block_size = 0
        self._buffers: Buffers | None = None
        self._sampler = StepSampler()
        # It starts with the first step.
        self._thread = ThreadPoolExecutor(1, "octavo torch", initializer=_take_number_of_threads)

    def parameter(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array).to(self.dtype)
        self.weight_bytes += tensor.nbytes
        return tensor

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> Tensor:
        return self.parameter(np.concatenate([part.floats() for part in parts]))

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> Tensor:
        return self.parameter(
            np.stack([np.concatenate([part.floats() for part in parts]) for parts in matrices])
        )

    def prepare(self, model: CausalLM, layout: KVLayout, block_size: int) -> None:
        self._model, self._layout, self._block_size = model, layout, block_size

    def settle(self) -> None:
        pass  # weights are loaded synchronously

    def reserve(self, size: StepSize, spare_bytes: int) -> int:
        dtype = "float32" if self.dtype == torch.float32 else "bfloat16"
        estimate = TorchFootprint(dtype).step_bytes(size)
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
        shape = (layout.kv_heads, layout.head_dim)
        self._buffers = None  # two caches might not fit
        self._buffers = make_buffers(
            layout.num_buffers, num_blocks, self._block_size, shape, self.dtype
        )

    @property
    def _ready(self) -> tuple[CausalLM, Buffers]:
        assert self._model is not None, "prepare must be called first"
        assert self._buffers is not None, "make_cache must be called first"
        return self._model, self._buffers

    def step(self, batch: HostBatch, draws: Draws) -> TorchPending:
        return TorchPending(self._thread.submit(self._run, batch, draws))

    def _run(self, batch: HostBatch, draws: Draws) -> StepOutput:
        self._sampler.change(draws)
        logits, hidden = self.forward(self._sampler.with_tokens(batch))
        return self._sampler.finish(draws, logits, hidden)

    @torch.inference_mode()
    def forward(self, batch: HostBatch) -> ForwardResult:
        model, buffers = self._ready
        size = buffers.block_size
        for source, destination in batch.copies:
            for cells in (*buffers.keys, *buffers.values):
                there = slice(destination * size, (destination + 1) * size)
                cells[there] = cells[source * size : (source + 1) * size]
        if not len(batch.token_ids):
            return ForwardResult(_NO_FLOATS, _NO_FLOATS)
        logits, hidden = model(TorchBatch.of(batch, buffers))
        return ForwardResult(logits.float().numpy(), hidden.float().numpy())
