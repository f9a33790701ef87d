"""The reference backend: runs a bound model with torch on the CPU, as simply as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.backends.base import ForwardResult, HostBatch, KVLayout, SamplingKernel
from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch.attention import Buffers, TorchBatch, make_buffers
from octavo.backends.torch.ops import TorchOps
from octavo.layers import CausalLM, Module, Ops

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchBackend:
    sampling: SamplingKernel | None = None  # the runner's own is used

    def __init__(self, dtype: str = "float32") -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        # The operations accept only this backend's own batches, which is narrower than Ops.
        self.ops: Ops = cast(Ops, TorchOps())
        self.dtype = DTYPES[dtype]
        self.weight_bytes = 0
        self._model: CausalLM | None = None
        self._buffers: Buffers | None = None

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

    def prepare(self, model: CausalLM, layout: KVLayout, num_blocks: int, block_size: int) -> None:
        shape = (layout.kv_heads, layout.head_dim)
        self._model = model
        self._buffers = make_buffers(layout.num_buffers, num_blocks, block_size, shape, self.dtype)

    def settle(self) -> None:
        pass  # weights are loaded synchronously

    @property
    def _ready(self) -> tuple[CausalLM, Buffers]:
        assert self._model is not None, "prepare must be called first"
        assert self._buffers is not None, "prepare must be called first"
        return self._model, self._buffers

    def copy_blocks(self, pairs: tuple[tuple[int, int], ...]) -> None:
        buffers = self._ready[1]
        size = buffers.block_size
        for source, destination in pairs:
            for cells in (*buffers.keys, *buffers.values):
                there = slice(destination * size, (destination + 1) * size)
                cells[there] = cells[source * size : (source + 1) * size]

    @torch.inference_mode()
    def forward(self, batch: HostBatch) -> ForwardResult:
        model, buffers = self._ready
        logits, hidden = model(TorchBatch.of(batch, buffers))
        return ForwardResult(logits.float().numpy(), hidden.float().numpy())
