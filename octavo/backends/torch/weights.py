"""Matrices as the reference keeps them: tensors, with what listings ask of a matrix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from octavo.backends.eight_bit_rows import input_scale, scale_group
from octavo.backends.stored_rows import StoredRows
from octavo.backends.torch import eight_bits, ops

_NAMES = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    eight_bits.CODES: "FP8",
}
# Of codes that a product has as floats at once, a multiple of what one product on the CPU has.
_PART_BYTES = 16 << 20


@dataclass(frozen=True, eq=False, slots=True)
class TorchMatrix:
    """A weight [outputs, inputs]: floats, or codes of eight bits with their scales."""

    values: Tensor
    gated: bool = False  # the first half of the outputs are gates, the others their ups
    kind: str = "float"  # the form of the rows that it reads, as `ops.formed` has it
    scales: Tensor | None = None  # of codes: [outputs, groups of inputs]
    group: int = 0  # inputs that share a scale, if there are scales

    @property
    def outputs(self) -> int:
        return self.values.shape[0]

    @property
    def inputs(self) -> int:
        return self.values.shape[1]

    @property
    def num_bytes(self) -> int:
        return self.values.nbytes + (0 if self.scales is None else self.scales.nbytes)

    @property
    def formats(self) -> str:
        """The name of its type, for people."""
        return _NAMES[self.values.dtype]

    def floats(self, first: int, stop: int) -> Tensor:
        """Return the values of some outputs in float32."""
        return self._part(first, stop, torch.float32)

    def product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply rows, which take the form that the matrix reads."""
        return self.product_of(self.formed(x), bias)

    def formed(self, x: Tensor) -> Any:
        """Return rows in the form that its products read."""
        return ops.formed(x, self.kind)

    def product_of(self, formed: Any, bias: Tensor | None) -> Tensor:
        """Multiply rows that have the form already: the meaning of every other product."""
        if self.scales is None:
            return ops.linear(formed, self.values, bias)
        parts = [
            ops.linear(formed, self._part(*part, formed.dtype), None)
            for part in self._parts(formed.dtype)
        ]
        y = parts[0] if len(parts) == 1 else torch.cat(parts, 1)
        return y if bias is None else y + bias

    def prove_shapes(self, dtype: torch.dtype) -> None:
        """Test the shapes of its products now: it takes a wait, which no step may have."""
        for first, stop in self._parts(dtype):
            ops.prove_shapes(self._part(first, stop, dtype))

    def _part(self, first: int, stop: int, dtype: torch.dtype) -> Tensor:
        if self.scales is None:
            return self.values[first:stop].to(dtype)
        codes, scales = self.values[first:stop], self.scales[first:stop]
        return eight_bits.of_groups(codes, scales, self.group, dtype)

    def _parts(self, dtype: torch.dtype) -> list[tuple[int, int]]:
        """Return the outputs of each product; codes become floats a bounded part at a time."""
        step, unit = self.outputs, ops.MOST_TILED_OUTPUTS
        if self.scales is not None:
            step = max(1, _PART_BYTES // (self.inputs * dtype.itemsize * unit)) * unit
        return [(n, min(n + step, self.outputs)) for n in range(0, self.outputs, step)]


@dataclass(frozen=True, eq=False, slots=True)
class TorchExperts:
    """A weight [experts, outputs, inputs]."""

    values: Tensor
    kind: str = "float"
    scales: Tensor | None = None  # of codes: [experts, outputs, groups of inputs]
    group: int = 0  # inputs that share a scale, if there are scales

    @property
    def matrices(self) -> list[TorchMatrix]:
        return [self.matrix(number) for number in range(len(self.values))]

    @property
    def inputs(self) -> int:
        return self.values.shape[2]

    def matrix(self, number: int) -> TorchMatrix:
        """Return the matrix of one expert."""
        scales = None if self.scales is None else self.scales[number]
        return TorchMatrix(self.values[number], False, self.kind, scales, self.group)


def rounded_form(matrices: Sequence[Sequence[StoredRows]], *, is_static: bool) -> str:
    """Return the form of the rows that products with stored matrices read, if rows are rounded.

    FP8 with a scale for each row or matrix reads rows of FP8, as its files are made for; all others
    read rows as they are.
    """
    parts = [part for each in matrices for part in each]
    if scale_group(parts) != parts[0].inputs:
        return "float"
    scale = input_scale(parts) if is_static else None
    return "fp8" if scale is None else f"fp8 {scale.hex()}"
