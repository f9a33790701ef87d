"""Safetensors that torchao has quantised: the parts of its tensor classes under names of their own.

The weight of a module X is

- `X._weight_qdata` [out, in]: signed bytes (Int8Tensor, IntxUnpackedToInt8Tensor) or floats of
  eight bits (Float8Tensor);
- `X._weight_scale`: a scale for each block, in a matrix of as many dimensions: [out, groups],
  [out, 1], or one for all; of floats also [out/rows, in/columns];
- `X._weight_zero_point`, of integers, mostly zeros: of the shape of the scales.

A value is (code - zero point) · scale. The class of a tensor is in the file's metadata, as JSON
under the name of the weight. Codes of four bits are read by `torchao_int4`, which describes their
classes. Other classes whose codes are packed for the kernels of a card are refused.
Scales of activations are not used: activations keep the backend's types.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct, field
from numpy.typing import NDArray

from octavo.backends.stored_rows import StoredRows
from octavo.loader import Checkpoint
from octavo.loader.errors import CorruptFileError, UnsupportedFormatError, quote
from octavo.loader.tensor_type import F8_E4M3, I8
from octavo.quant.integers import Codes, IntegerKind, IntegerModule, Integers, kind_of
from octavo.quant.methods.fp8 import Fp8Matrix
from octavo.quant.methods.torchao_int4 import CLASSES as INT4_CLASSES
from octavo.quant.methods.torchao_int4 import Int4Matrix, check_sizes
from octavo.quant.weight_format import MAX_GROUP, ModuleMatrix, Settings, Shape, StoredMatrix

_CODES, _SCALE, _ZERO = "._weight_qdata", "._weight_scale", "._weight_zero_point"
_UNUSED = ("._weight_act_quant_scale", "._weight_act_quant_zero_point")
_FACTOR = "._weight_act_pre_scale"
_CLASSES = ("Int8Tensor", "IntxUnpackedToInt8Tensor", "Float8Tensor", *INT4_CLASSES)
_MIDDLE = 128  # what makes signed bytes unsigned


class _Description(Struct, frozen=True):
    """The class of a tensor, of what the metadata says about it."""

    type: str = field(name="_type", default="")


class _Sizes(Struct, frozen=True):
    """The sizes of a matrix and of the blocks that share a scale; a stack of matrices has more."""

    shape: Annotated[tuple[int, ...], Meta(min_length=2, max_length=3)]
    block_size: Annotated[tuple[int, ...], Meta(min_length=2, max_length=3)]


class _SizedDescription(Struct, frozen=True):
    """The sizes that the metadata states for a tensor."""

    data: _Sizes = field(name="_data")


class Torchao(Struct, frozen=True):
    """The format; the class of each tensor is seen from the file."""

    def find(self, checkpoint: Checkpoint) -> Iterator[StoredMatrix]:
        for name, info in checkpoint.tensors.items():
            module = name.removesuffix(_CODES)
            if module == name:
                continue
            kind = _checked_class(checkpoint, module)
            if kind in INT4_CLASSES:
                yield _int4_matrix(checkpoint, module, INT4_CLASSES[kind])
            elif info.type == I8 and len(info.shape) == 2:
                yield IntegerMatrix(checkpoint, module)
            elif info.type == F8_E4M3 and len(info.shape) == 2:
                yield FloatMatrix(checkpoint, module)
            else:
                raise UnsupportedFormatError(
                    f"is of the type {info.type.name} with {len(info.shape)} dimensions; supported "
                    "are matrices of I8 and F8_E4M3",
                    path=info.path,
                    tensor=name,
                    advice="use the unquantised model or a GGUF file",
                )

    def unused(self, checkpoint: Checkpoint, expected: Container[str]) -> Iterator[str]:
        yield from (name for name in checkpoint.tensors if name.endswith(_UNUSED))


def _described(checkpoint: Checkpoint, module: str) -> str:
    """Return what the metadata says about a module's weight, as JSON."""
    text = checkpoint.metadata.get(f"{module}.weight")
    return text if isinstance(text, str) else "{}"


def _checked_class(checkpoint: Checkpoint, module: str) -> str:
    """Return the class of a module's weight, if it is stated; refuse one that is not read."""
    try:
        kind = msgspec.json.decode(_described(checkpoint, module), type=_Description).type
    except msgspec.DecodeError:
        kind = ""  # the tensors say what they are
    if kind and kind not in _CLASSES:
        what = f"torchao's class {quote(kind)} is not supported; supported are: "
        what += ", ".join(_CLASSES)
    elif module + _FACTOR in checkpoint:
        what = "activations that are multiplied before the matrix (act_pre_scale) are not supported"
    else:
        return kind
    raise UnsupportedFormatError(
        what,
        path=checkpoint.info(module + _CODES).path,
        tensor=f"{module}.weight",
        advice="quantise the model again, or use the unquantised model or a GGUF file",
    )


def _int4_matrix(checkpoint: Checkpoint, module: str, kind: type[Int4Matrix]) -> Int4Matrix:
    try:
        text = _described(checkpoint, module)
        sizes = msgspec.json.decode(text, type=_SizedDescription).data
    except msgspec.DecodeError as error:
        raise UnsupportedFormatError(
            f"has no description of a matrix in the file's metadata: {error}",
            path=checkpoint.info(module + _CODES).path,
            tensor=f"{module}.weight",
            advice="use the unquantised model or a GGUF file",
        ) from None
    *tall, group = sizes.block_size
    if any(size != 1 for size in tall):
        raise UnsupportedFormatError(
            f"scales for blocks of {list(sizes.block_size)} are not supported in codes of four "
            "bits; supported are groups of one row's inputs",
            path=checkpoint.info(module + _CODES).path,
            tensor=f"{module}.weight",
            advice="use the unquantised model or a GGUF file",
        )
    return check_sizes(kind(checkpoint, module, sizes.shape[-2:], group))


class IntegerMatrix(IntegerModule, frozen=True):
    """A matrix of signed bytes."""

    @property
    def tensors(self) -> tuple[str, ...]:
        names = (self.module + _CODES, self.module + _SCALE)
        zero = self.module + _ZERO
        return (*names, zero) if zero in self.checkpoint else names

    @property
    def kind(self) -> IntegerKind:
        has_zeros = self.module + _ZERO in self.checkpoint
        return kind_of(8, self.shape[1], self._group, is_symmetric=not has_zeros)

    @property
    def shape(self) -> Shape:
        return self.checkpoint.info(self.module + _CODES).shape

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        scales: Shape = (shape[0], shape[1] // (self._group or shape[1]))
        if self._stored_scales == (1, 1):
            scales = (1, 1)
        return {name: shape if name.endswith(_CODES) else scales for name in self.tensors}

    @property
    def _stored_scales(self) -> Shape:
        name = self.module + _SCALE
        return self.checkpoint.info(name).shape if name in self.checkpoint else ()

    @property
    def _group(self) -> int | None:
        """The number of inputs that share a scale; None: all of a row."""
        inputs, shape = self.shape[1], self._stored_scales
        if len(shape) != 2 or shape[1] == 1:
            return None
        if shape[1] == 0 or inputs % shape[1] or inputs // shape[1] > MAX_GROUP:
            name = self.module + _SCALE
            raise CorruptFileError(
                f"has {shape[1]:,} scales for the {inputs:,} inputs of a row, which are no groups "
                f"of at most {MAX_GROUP:,}",
                path=self.checkpoint.info(name).path,
                tensor=name,
            )
        return inputs // shape[1]

    def rows(self) -> StoredRows:
        (outputs, inputs), codes = self.shape, self.checkpoint.read(self.module + _CODES)
        scales = self.checkpoint.read_float32(self.module + _SCALE)
        zeros = self._zero_points()
        return Integers(
            kind=self.kind,
            inputs=inputs,
            group=self._group,
            scales=np.broadcast_to(scales, (outputs, scales.shape[1])),
            zeros=None if zeros is None else np.broadcast_to(zeros, (outputs, zeros.shape[1])),
            codes=Codes(codes.view(np.uint8), flipped=_MIDDLE),
        ).rows()

    def _zero_points(self) -> NDArray[np.uint8] | None:
        """Return the zero points of unsigned codes."""
        name = self.module + _ZERO
        if name not in self.checkpoint:
            return None
        info, stored = self.checkpoint.info(name), self.checkpoint.read(name)
        if info.type != I8:
            values = self.checkpoint.read_float32(name)
            with np.errstate(invalid="ignore"):
                stored = values.astype(np.int8)
            if not np.array_equal(stored, values):
                raise UnsupportedFormatError(
                    "has zero points that are no whole numbers of eight bits",
                    path=info.path,
                    tensor=name,
                    advice="use the unquantised model or a GGUF file",
                )
        zeros: NDArray[np.uint8] = stored.view(np.uint8) ^ np.uint8(_MIDDLE)
        return zeros


class FloatMatrix(ModuleMatrix, frozen=True):
    """A matrix of floats of eight bits."""

    @property
    def _matrix(self) -> Fp8Matrix:
        codes, scale = self.module + _CODES, self.module + _SCALE
        shape = self.checkpoint.info(codes).shape
        scales = self.checkpoint.info(scale).shape
        block = None
        if len(scales) == 2 and math.prod(scales) > 1 and scales[1] > 1:
            (outputs, inputs), (tall, wide) = shape, scales
            if outputs % tall or inputs % wide or inputs // wide > MAX_GROUP:
                raise CorruptFileError(
                    f"has {list(scales)} scales for a matrix {list(shape)}, which are no blocks "
                    f"with at most {MAX_GROUP:,} inputs",
                    path=self.checkpoint.info(scale).path,
                    tensor=scale,
                )
            block = (outputs // tall, inputs // wide)
        return Fp8Matrix(self.checkpoint, codes, scale, block)

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.module + _CODES, self.module + _SCALE

    @property
    def type(self) -> str:
        return self._matrix.type

    @property
    def shape(self) -> Shape:
        return self.checkpoint.info(self.module + _CODES).shape

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        return self._matrix.stored_shapes(shape)

    def rows(self) -> StoredRows:
        return self._matrix.rows()


def read_torchao(settings: Settings) -> Torchao:
    """Make the format; its settings name how tensors were made, which the tensors show."""
    return Torchao()
