"""The reference backend with a record of what matrices multiply: sums of their inputs' products.

Quantisers need them: an error in a weight matters as much as its input, alone and with others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.backends.torch.backend import TorchBackend
from octavo.backends.torch.interpreter import Interpreter, Run
from octavo.backends.torch.weights import TorchMatrix
from octavo.layers import Model, Value
from octavo.program.listing import Instruction, Listing
from octavo.program.recorder import record

_Meaning = Callable[[Run, Instruction], None]


class RecordingBackend(TorchBackend):
    """A backend that sums xᵀx over the rows x that chosen matrices multiply."""

    def __init__(self) -> None:
        super().__init__("float32")
        self._sums: dict[TorchMatrix, Tensor] = {}

    def record(self, matrices: Collection[Value]) -> None:
        """Record the inputs of these matrices from now on, and those of no others."""
        self._sums = {each: torch.zeros(each.inputs, each.inputs) for each in matrices}

    def sums(self, matrix: Value) -> NDArray[np.float32]:
        """Return the sums of a matrix: [inputs, inputs]."""
        found: NDArray[np.float32] = self._sums[matrix].numpy()
        return found

    def _program(self, model: Model, kept_layers: object = ()) -> Interpreter:
        return _RecordingInterpreter(record(model), self._sums_of)

    def _sums_of(self, matrix: object) -> Tensor | None:
        return self._sums.get(matrix) if isinstance(matrix, TorchMatrix) else None


class _RecordingInterpreter(Interpreter):
    """An interpreter that adds up the inputs of products before it computes them."""

    def __init__(self, listing: Listing, sums_of: Callable[[object], Tensor | None]) -> None:
        super().__init__(listing)
        self._sums_of = sums_of
        self._steps = [
            (self._watched(meaning) if step.op == "Gemm" else meaning, step, done)
            for meaning, step, done in self._steps
        ]

    def _watched(self, meaning: _Meaning) -> _Meaning:
        def run(state: Run, step: Instruction) -> None:
            sums = self._sums_of(step.matrix)
            if sums is not None:
                x = state[step.x]
                sums.addmm_(x.T, x)
            meaning(state, step)

        return run
