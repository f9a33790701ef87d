"""The reference backend with a record of what matrices multiply: sums of products, or a sample.

Quantisers need them: an error in a weight matters as much as its input, alone and with others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.backends.torch.backend import TorchBackend
from octavo.backends.torch.interpreter import Interpreter
from octavo.backends.torch.run import Run
from octavo.backends.torch.weights import TorchMatrix
from octavo.layers import Model, Value
from octavo.program.listing import Instruction, Listing
from octavo.program.recorder import record

_Meaning = Callable[[Run, Instruction], None]


class RecordingBackend(TorchBackend):
    """A backend that sums xᵀx over the rows x that chosen matrices multiply, or keeps some rows."""

    def __init__(self) -> None:
        super().__init__("float32")
        self._sums: dict[TorchMatrix, Tensor] = {}
        self._samples: dict[TorchMatrix, list[Tensor]] = {}
        self._rows_of_step = 0

    def record(self, matrices: Collection[Value]) -> None:
        """Record the inputs of these matrices from now on, and those of no others."""
        self._sums = {each: torch.zeros(each.inputs, each.inputs) for each in matrices}
        self._samples = {}

    def sample(self, matrices: Collection[Value], rows_of_step: int) -> None:
        """Keep so many rows of each step from now on that these matrices multiply."""
        self._samples = {each: [] for each in matrices}
        self._rows_of_step = rows_of_step
        self._sums = {}

    def rows(self, matrix: Value) -> NDArray[np.float32]:
        """Return the sample of a matrix: [rows, inputs]."""
        found: NDArray[np.float32] = torch.cat(self._samples[matrix]).numpy()
        return found

    def sums(self, matrix: Value) -> NDArray[np.float32]:
        """Return the sums of a matrix: [inputs, inputs]."""
        found: NDArray[np.float32] = self._sums[matrix].numpy()
        return found

    def _program(
        self,
        model: Model,
        kept_layers: object = (),
        adapters: object = None,
        features: object = None,
    ) -> Interpreter:
        return _RecordingInterpreter(record(model), self._take)

    def _take(self, matrix: object, x: Callable[[], Tensor]) -> None:
        """Record what a matrix multiplies, if that is asked for."""
        if not isinstance(matrix, TorchMatrix):
            return
        if matrix in self._sums:
            rows = x()
            self._sums[matrix].addmm_(rows.T, rows)
        elif matrix in self._samples:
            rows = x()
            step = -(-len(rows) // self._rows_of_step)
            self._samples[matrix].append(rows[::step].clone())


class _RecordingInterpreter(Interpreter):
    """An interpreter that shows the inputs of products before it computes them."""

    def __init__(
        self, listing: Listing, take: Callable[[object, Callable[[], Tensor]], None]
    ) -> None:
        super().__init__(listing)
        self._take = take
        self._steps = [
            (self._watched(meaning) if step.op == "Gemm" else meaning, step, done)
            for meaning, step, done in self._steps
        ]

    def _watched(self, meaning: _Meaning) -> _Meaning:
        def run(state: Run, step: Instruction) -> None:
            self._take(step.matrix, lambda: state[step.x])
            meaning(state, step)

        return run
