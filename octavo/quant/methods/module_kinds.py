"""The kinds of weights that a module may have, where settings say which: from a name to a matrix.

Each has a method `matrix`, which returns None for a module that is stored as it is, and raises an
error if a part of it is missing.
"""

from __future__ import annotations

from msgspec import Struct

from octavo.loader import Checkpoint
from octavo.loader.errors import TensorMismatchError, quote
from octavo.loader.tensor_type import F8_E4M3, I8, I32, U8, TensorType
from octavo.quant.methods.fp8 import Fp8
from octavo.quant.methods.module_integers import IntegerMatrix, IntegerSettings, packed_shape
from octavo.quant.methods.mxfp4 import PackedMxfp4Matrix
from octavo.quant.methods.nvfp4 import Nvfp4Matrix
from octavo.quant.methods.word_modules import WORD_BITS
from octavo.quant.weight_format import StoredMatrix


class Nvfp4(Struct, frozen=True):
    """Weights of four-bit floats with two scales."""

    is_modelopt: bool = False  # of which tool the names are

    def matrix(self, checkpoint: Checkpoint, module: str) -> StoredMatrix | None:
        name = f"{module}.weight" if self.is_modelopt else f"{module}.weight_packed"
        if not _is_stored(checkpoint, name, U8):
            return None
        return _whole(Nvfp4Matrix(checkpoint, module, self.is_modelopt), checkpoint)


class PackedMxfp4(Struct, frozen=True):
    """Weights of four-bit floats with powers of two as scales."""

    def matrix(self, checkpoint: Checkpoint, module: str) -> StoredMatrix | None:
        if not _is_stored(checkpoint, f"{module}.weight_packed", U8):
            return None
        return _whole(PackedMxfp4Matrix(checkpoint, module), checkpoint)


class ModuleFp8(Struct, frozen=True):
    """Weights of eight-bit floats."""

    format: Fp8

    def matrix(self, checkpoint: Checkpoint, module: str) -> StoredMatrix | None:
        name = f"{module}.weight"
        if not _is_stored(checkpoint, name, F8_E4M3):
            return None
        _require(checkpoint, name, f"{name}_scale")
        return self.format.matrix(checkpoint, name)


class ModuleIntegers(Struct, frozen=True):
    """Weights of integers, packed or as bytes."""

    settings: IntegerSettings

    def matrix(self, checkpoint: Checkpoint, module: str) -> StoredMatrix | None:
        name = f"{module}.weight"
        needed = [f"{name}_scale"]
        if not self.settings.symmetric:
            needed.append(f"{name}_zero_point")
        if _is_stored(checkpoint, f"{name}_packed", I32):
            if WORD_BITS % self.settings.bits:  # else words tell how many codes they have
                needed.append(f"{name}_shape")
            _require(checkpoint, f"{name}_packed", *needed)
            shape = packed_shape(checkpoint, module, self.settings.bits)
            return IntegerMatrix(checkpoint, module, self.settings, True, shape)
        if not _is_stored(checkpoint, name, I8):
            return None
        _require(checkpoint, name, *needed)
        shape = checkpoint.info(name).shape
        return IntegerMatrix(checkpoint, module, self.settings, False, shape)


def _is_stored(checkpoint: Checkpoint, name: str, kind: TensorType) -> bool:
    """Return whether there is a matrix of this type."""
    info = checkpoint.tensors.get(name)
    return info is not None and info.type == kind and len(info.shape) == 2


def _whole(matrix: StoredMatrix, checkpoint: Checkpoint) -> StoredMatrix:
    """Return a matrix all of whose tensors are stored."""
    first, *others = matrix.tensors
    _require(checkpoint, first, *others)
    return matrix


def _require(checkpoint: Checkpoint, name: str, *others: str) -> None:
    """Refuse a matrix without the tensors that its values depend on."""
    for other in others:
        if other not in checkpoint:
            raise TensorMismatchError(
                f"needs {quote(other)}, which is missing",
                path=checkpoint.info(name).path,
                tensor=name,
                advice="fetch the model again, or quantise it again",
            )
