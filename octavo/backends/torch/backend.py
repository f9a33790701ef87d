"""The reference backend: runs a bound model with torch on the CPU, as simply as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.backends.base import ForwardResult, HostBatch, KVLayout, SamplingKernel
from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch.attention import Buffers, TorchBatch, make_buffers
from octavo.backends.torch.interpreter import Interpreter
from octavo.backends.torch.weights import TorchExperts, TorchMatrix
from octavo.distributed.communicator import Communicator
from octavo.layers import CausalLM, GateUpLinear, Module
from octavo.program.passes.collectives import insert_collectives
from octavo.program.recorder import record

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class TorchBackend:
    sampling: SamplingKernel | None = None  # the runner's own is used

    def __init__(self, dtype: str = "float32", communicator: Communicator | None = None) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"dtype {dtype!r} is not one of {', '.join(DTYPES)}")
        self.dtype = DTYPES[dtype]
        self.weight_bytes = 0
        self._communicator = communicator  # if several ranks share the model
        self._interpreter: Interpreter | None = None
        self._buffers: Buffers | None = None

    def parameter(self, array: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(array).to(self.dtype)
        self.weight_bytes += tensor.nbytes
        return tensor

    def matrix(self, parts: Sequence[StoredRows], module: Module) -> TorchMatrix:
        values = self.parameter(np.concatenate([part.floats() for part in parts]))
        return TorchMatrix(values, isinstance(module, GateUpLinear))

    def experts(self, matrices: Sequence[Sequence[StoredRows]], module: Module) -> TorchExperts:
        values = [np.concatenate([part.floats() for part in parts]) for parts in matrices]
        return TorchExperts(self.parameter(np.stack(values)))

    def prepare(self, model: CausalLM, layout: KVLayout, num_blocks: int, block_size: int) -> None:
        shape = (layout.kv_heads, layout.head_dim)
        listing = record(model)
        if self._communicator is not None:
            insert_collectives(listing, model, self._communicator.context)
        self._interpreter = Interpreter(listing, self._communicator)
        self._buffers = make_buffers(layout.num_buffers, num_blocks, block_size, shape, self.dtype)

    def settle(self) -> None:
        pass  # weights are loaded synchronously

    @property
    def _ready(self) -> tuple[Interpreter, Buffers]:
        assert self._interpreter is not None, "prepare must be called first"
        assert self._buffers is not None, "prepare must be called first"
        return self._interpreter, self._buffers

    def copy_blocks(self, pairs: tuple[tuple[int, int], ...]) -> None:
        buffers = self._ready[1]
        size = buffers.block_size
        for source, destination in pairs:
            for cells in (*buffers.keys, *buffers.values):
                there = slice(destination * size, (destination + 1) * size)
                cells[there] = cells[source * size : (source + 1) * size]

    @torch.inference_mode()
    def forward(self, batch: HostBatch) -> ForwardResult:
        interpreter, buffers = self._ready
        outputs = interpreter.run(TorchBatch.of(batch, buffers))
        return ForwardResult(outputs.logits.float().numpy(), outputs.hidden.float().numpy())
