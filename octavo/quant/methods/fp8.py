"""FP8 in safetensors checkpoints: floats of eight bits (E4M3) with scales.

`X.weight` [out, in] is F8_E4M3. Its scale multiplies a value, and is a tensor of its own:

- a scale for each block of, mostly, 128 × 128 numbers: `X.weight_scale_inv` [out/128, in/128], as
  DeepSeek and Qwen publish (quant_method "fp8" with a weight_block_size);
- one for each row or for the whole matrix: `X.weight_scale` [out, 1], [out], [1] or []
  (quant_method "fp8", "fbgemm_fp8", and in compressed_tensors.py and modelopt.py).

Every row gets its own copy of its scales, so that rows can be cut anywhere. Types such as F8By128
say how many inputs a scale is for; FP8 says that their number has no type of its own. A scale of
activations (`X.input_scale`) goes with the rows, for backends that round activations as the file
says. Those of the KV cache are not used.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from octavo.backends.made_rows import GroupTensors, group_block
from octavo.backends.stored_rows import Floats, RowLayout, StoredRows
from octavo.loader import Checkpoint
from octavo.loader.checkpoint import numpy_dtype
from octavo.loader.errors import TensorMismatchError, UnsupportedFormatError, quote
from octavo.loader.tensor_type import F8_E4M3
from octavo.quant.integers import made_rows
from octavo.quant.scaled_groups import group_or_repeated, named_group, scaled_layout
from octavo.quant.weight_format import MAX_GROUP, Settings, Shape, unused_scales

_SCALES = ("_scale_inv", "_scale")
_ALL_SCALES = (*_SCALES, "_weight_scale")  # with that of a stack of experts
_SIZES = (128, 32)  # of the groups that types name


class Fp8(Struct, frozen=True):
    """The format, with the settings of one checkpoint."""

    block: tuple[int, int] | None  # outputs and inputs that share a scale; None: rows, or all

    def find(self, checkpoint: Checkpoint) -> Iterator[Fp8Matrix]:
        for name, info in checkpoint.tensors.items():
            found = self.matrix(checkpoint, name)
            if found is not None:
                yield found
            elif info.type == F8_E4M3 and not any(name + end in checkpoint for end in _ALL_SCALES):
                raise TensorMismatchError(
                    "is of eight-bit floats, but has no scale",
                    path=info.path,
                    tensor=name,
                    advice="fetch the model again, or quantise it again",
                )

    def matrix(self, checkpoint: Checkpoint, name: str) -> Fp8Matrix | None:
        """Return the matrix of a tensor, if it is one of this format."""
        info = checkpoint.info(name)
        if info.type != F8_E4M3 or len(info.shape) != 2:
            return None
        for ending in _SCALES:
            if name + ending in checkpoint:
                return Fp8Matrix(checkpoint, name, name + ending, self.block)
        return None

    def unused(self, checkpoint: Checkpoint, expected: Container[str]) -> Iterator[str]:
        return unused_scales(checkpoint)


class Fp8Matrix(Struct, frozen=True):
    """A matrix and its scales."""

    checkpoint: Checkpoint
    name: str
    scale: str
    block: tuple[int, int] | None

    @property
    def type(self) -> str:
        group = self._named_group
        return f"F8By{group}" if group else "FP8"

    @property
    def _stored_group(self) -> int:
        return group_or_repeated(self.block and self.block[1], self.shape[1])

    @property
    def _named_group(self) -> int:
        return named_group(self._stored_group, self.shape[1], _SIZES)

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.name, self.scale

    @property
    def shape(self) -> Shape:
        return self.checkpoint.info(self.name).shape

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        scale = self.checkpoint.info(self.scale).shape
        outputs, inputs = shape
        if self.block is not None:
            scale = (-(-outputs // self.block[0]), -(-inputs // self.block[1]))
        elif math.prod(scale) != 1:
            scale = (outputs, 1) if len(scale) == 2 else (outputs,)
        return {self.name: shape, self.scale: scale}

    def rows(self) -> StoredRows:
        outputs, inputs = self.shape
        tall = 1 if self.block is None else self.block[0]
        scales = self.checkpoint.read_float32(self.scale)
        if self.block is None:
            scales = np.broadcast_to(scales.reshape(-1, 1), (outputs, 1))
        group = self._named_group or self._stored_group
        tensors = GroupTensors(
            inputs=inputs,
            codes=self.checkpoint.read(self.name).view(np.uint8),
            bits=8,
            scales=scales,
            scale_group=inputs if self.block is None else self.block[1],
            group=group,
            scale_outputs=tall,
            table=_table(),
        )
        layout = replace(fp8_layout(group, self.type), input_scale=self._input_scale)
        return made_rows(layout, tensors)

    @property
    def _input_scale(self) -> float | None:
        """The scale of activations that were measured once, if there is a usable one."""
        name = f"{self.name.removesuffix('.weight')}.input_scale"
        if self.block is not None or name not in self.checkpoint:
            return None
        if math.prod(self.checkpoint.info(name).shape) != 1:
            return None
        scale = float(self.checkpoint.read_float32(name).reshape(-1)[0])
        return scale if math.isfinite(scale) and scale > 0 else None


def read_fp8(settings: Settings) -> Fp8:
    """Read the settings of quant_method "fp8": with blocks, or one scale for each matrix."""
    _check_numbers("fmt", settings.string("fmt", "e4m3"))
    key = "weight_block_size"
    return Fp8(block_size(key, settings.values.get(key)))


def read_fbgemm(settings: Settings) -> Fp8:
    """Make the format of quant_method "fbgemm_fp8": a scale for each row."""
    return Fp8(None)


def _check_numbers(key: str, kind: str) -> None:
    if kind != "e4m3":
        raise UnsupportedFormatError(
            f"{key}: weights of the type {quote(kind)} are not supported in this format; "
            "supported is float8 e4m3",
            advice="use the unquantised model or a GGUF file",
        )


def block_size(key: str, value: object) -> tuple[int, int] | None:
    """Check the numbers of outputs and inputs that share a scale."""
    if value is None:
        return None
    if isinstance(value, list) and len(value) == 2:
        outputs, inputs = value
        if all(type(size) is int and 0 < size <= MAX_GROUP for size in value):
            return outputs, inputs
    raise UnsupportedFormatError(
        f"{key} must be two sizes from 1 to {MAX_GROUP:,}, is {quote(str(value))}"
    )


@cache
def _table() -> Floats:
    """Return the values of all codes."""
    return np.arange(256, dtype=np.uint8).view(numpy_dtype(F8_E4M3)).astype(np.float32)


@cache
def fp8_layout(group: int, name: str) -> RowLayout:
    """Return the layout of groups of eight-bit floats, each group with its scale."""
    table = _table()

    def unscaled(blocks: NDArray[Any], out: NDArray[np.float32]) -> None:
        np.take(table, blocks["codes"], out=out)

    return scaled_layout(name, group, group_block(group, 8, has_zeros=False), unscaled)
