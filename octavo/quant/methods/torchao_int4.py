"""Integers of four bits as torchao stores them: plain, or in the tiles of a kernel for cards.

The weight of a module X is of the class

- Int4Tensor: `X._weight_qdata` [out, in/2], bytes with two signed codes each, the first in the low
  half; `X._weight_scale` and `X._weight_zero_point` [groups, out];
- Int4TilePackedTo4dTensor: `X._weight_qdata` [out/8, in/128, 32, 4], words of 32 bits, and
  `X._weight_scale_and_zero` [groups, out, 2]. The inputs are filled up to a multiple of 1024 and
  the outputs to one of 8. A tile has 8 outputs and 128 inputs; place (a, b) of its words is for
  output a/4 and the inputs 32·b + 8·i + 2·(a mod 4) and the next, with i from 0 to 3: the unsigned
  codes of the former are in the low half of the word, those of the latter in the high half.

The value of a code is code · scale + zero, where zero is the value in the middle of the codes. The
sizes of the matrix and of a group are in the file's metadata. (Cards of AMD order the words of a
tile otherwise, which a file does not say; published files are made on those of NVIDIA.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from octavo.backends.code_bits import packed, unpacked
from octavo.backends.stored_rows import StoredRows
from octavo.loader.errors import CorruptFileError, TensorMismatchError, UnsupportedFormatError
from octavo.loader.tensor_type import I8, I32, U8, TensorType
from octavo.quant.integers import Codes, IntegerKind, Integers, as_scales, kind_of
from octavo.quant.weight_format import MAX_GROUP, ModuleMatrix, Shape

_SIGNS = 0x88  # of both codes in a byte
_CODES, _SCALE, _ZERO = "._weight_qdata", "._weight_scale", "._weight_zero_point"
_SCALE_AND_ZERO = "._weight_scale_and_zero"
_TILE = (8, 128)  # outputs and inputs
_LANES, _WORDS = 32, 4  # of a tile
_FILLED = (8, 1024)  # the multiples that outputs and inputs are filled up to


class Int4Matrix(ModuleMatrix, frozen=True):
    """The matrix of one module."""

    shape: Shape
    group: int
    stored_as: ClassVar[tuple[TensorType, ...]] = (I8, U8)

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(self.module + part for part in (_CODES, _SCALE, _ZERO))

    @property
    def type(self) -> str:
        return self._kind.name

    @property
    def _kind(self) -> IntegerKind:
        inputs = self.shape[1]
        return kind_of(4, inputs, self.group, is_symmetric=False, zeros_are_values=True)

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        if shape != self.shape:
            raise TensorMismatchError(
                f"is described as {list(self.shape)}, but the model needs {list(shape)}",
                path=self.checkpoint.info(self.tensors[0]).path,
                tensor=self.name,
            )
        return dict(zip(self.tensors, self._sizes(), strict=True))

    def _sizes(self) -> tuple[Shape, ...]:
        """Return the shapes of the tensors."""
        outputs, inputs = self.shape
        groups = (inputs // self.group, outputs)
        return (outputs, inputs // 2), groups, groups

    def rows(self) -> StoredRows:
        scales, zeros = self._scales_and_zeros()
        return Integers(
            kind=self._kind,
            inputs=self.shape[1],
            group=self.group,
            scales=scales,
            zeros=as_scales(zeros),
            codes=self._codes(),
        ).rows()

    def _scales_and_zeros(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return both as [outputs, groups]."""
        scales, zeros = (self.checkpoint.read(self.module + part).T for part in (_SCALE, _ZERO))
        return scales, zeros

    def _codes(self) -> Codes:
        """Return codes [outputs, inputs / 2], the first of a byte in the low half."""
        signed = self.checkpoint.read(self.module + _CODES).view(np.uint8)
        return Codes(signed, flipped=_SIGNS)


class TiledInt4Matrix(Int4Matrix, frozen=True):
    """The matrix of one module whose codes are in tiles."""

    stored_as: ClassVar[tuple[TensorType, ...]] = (I32,)

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.module + _CODES, self.module + _SCALE_AND_ZERO

    def _sizes(self) -> tuple[Shape, ...]:
        sizes = zip(self.shape, _FILLED, _TILE, strict=True)
        filled = [(-(-size // multiple) * multiple, tile) for size, multiple, tile in sizes]
        tiles = [size // tile for size, tile in filled]
        (outputs, _), (inputs, _) = filled
        return (*tiles, _LANES, _WORDS), (inputs // self.group, outputs, 2)

    def _scales_and_zeros(self) -> tuple[NDArray[Any], NDArray[Any]]:
        outputs, groups = self.shape[0], self.shape[1] // self.group
        both = self.checkpoint.read(self.module + _SCALE_AND_ZERO)[:groups, :outputs]
        return both[..., 0].T, both[..., 1].T

    def _codes(self) -> Codes:
        words = self.checkpoint.read(self.module + _CODES)
        tall, wide = words.shape[:2]
        bytes_of = words.view(np.uint8).reshape(tall, wide, 8, 4, _WORDS, 2, 2)
        # A half of a word has two bytes with the codes of i = 0, 1 and of 2, 3.
        codes = unpacked(bytes_of, 4).reshape(tall, wide, 8, 4, _WORDS, 2, 4)
        # From (tile, tile, output, pair, b, half, i) to rows, with the half last.
        ordered = codes.transpose(0, 2, 1, 4, 6, 3, 5).reshape(tall * _TILE[0], wide * _TILE[1])
        return Codes(packed(ordered[: self.shape[0], : self.shape[1]], 4))


CLASSES: dict[str, type[Int4Matrix]] = {
    "Int4Tensor": Int4Matrix,
    "Int4TilePackedTo4dTensor": TiledInt4Matrix,
}


def check_sizes(matrix: Int4Matrix) -> Int4Matrix:
    """Refuse a matrix of sizes or types that its description cannot have."""
    (outputs, inputs), group = matrix.shape, matrix.group
    info = matrix.checkpoint.info(matrix.module + _CODES)
    if min(outputs, inputs) < 1 or not 0 < group <= MAX_GROUP or inputs % group or group % 2:
        raise CorruptFileError(
            f"is described as {outputs:,} rows of {inputs:,} in groups of {group:,}, which are no "
            f"groups of an even size of at most {MAX_GROUP:,}",
            path=info.path,
            tensor=info.name,
        )
    if info.type not in matrix.stored_as:
        supported = ", ".join(kind.name for kind in matrix.stored_as)
        raise UnsupportedFormatError(
            f"is of the type {info.type.name}; supported are: {supported}",
            path=info.path,
            tensor=info.name,
            advice="use the unquantised model or a GGUF file",
        )
    return matrix
