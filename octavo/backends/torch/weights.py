"""Matrices as the reference keeps them: tensors, with what listings ask of a matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}


@dataclass(frozen=True, eq=False, slots=True)
class TorchMatrix:
    """A weight [outputs, inputs]."""

    values: Tensor
    gated: bool = False  # the first half of the outputs are gates, the others their ups
    kind: str = "float"  # the form of the rows that it reads: a key of ops.FORMS

    @property
    def outputs(self) -> int:
        return self.values.shape[0]

    @property
    def inputs(self) -> int:
        return self.values.shape[1]

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes

    @property
    def formats(self) -> str:
        """The name of its type, for people."""
        return _NAMES[self.values.dtype]


@dataclass(frozen=True, eq=False, slots=True)
class TorchExperts:
    """A weight [experts, outputs, inputs]."""

    values: Tensor
    kind: str = "float"

    @property
    def matrices(self) -> list[TorchMatrix]:
        return [TorchMatrix(each, kind=self.kind) for each in self.values]

    @property
    def inputs(self) -> int:
        return self.values.shape[2]
