"""Integers of 2 to 8 bits as compressed-tensors stores them, packed into words or as bytes.

A module X with `in` inputs and `out` outputs has

- `X.weight_packed` [out, in·bits/32]: words of 32 bits with the codes of consecutive inputs, the
  first in the lowest bits, each plus half of its range, and mostly `X.weight_shape`, which is
  [out, in] (stacks of experts are stored without);
- or `X.weight` [out, in]: signed bytes;
- `X.weight_scale`: [out, groups], [out, 1], or one for all;
- `X.weight_zero_point`, unless the codes are symmetric: in words along the outputs,
  [out·bits/32, groups], or signed bytes of the scale's shape (always so if that is one for all);
- `X.weight_g_idx` [in], with act-order: the group of each input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.backends.code_bits import packed, place_bits, unpacked
from octavo.backends.stored_rows import Order, StoredRows
from octavo.loader import Checkpoint
from octavo.loader.errors import CorruptFileError, TensorMismatchError
from octavo.loader.tensor_type import I32
from octavo.quant.integers import (
    Codes,
    IntegerKind,
    IntegerModule,
    Integers,
    grouped_columns,
    kind_of,
)
from octavo.quant.methods.word_modules import WORD_BITS
from octavo.quant.weight_format import Shape


class IntegerSettings(Struct, frozen=True):
    """The integers of some modules, as the configuration describes them."""

    bits: int
    strategy: str  # tensor, channel or group
    group: int | None  # inputs that share a scale; None: all of a row
    symmetric: bool
    act_order: bool  # the inputs of a group may be anywhere
    takes_int8: bool = False  # activations are int8 too

    @property
    def middle(self) -> int:
        """The code that a signed zero is stored as."""
        return 1 << (self.bits - 1)


class IntegerMatrix(IntegerModule, frozen=True):
    """The matrix of one module."""

    settings: IntegerSettings
    is_packed: bool
    shape: Shape

    @property
    def tensors(self) -> tuple[str, ...]:
        return tuple(self._stored(part) for part in self._parts())

    def _parts(self) -> tuple[str, ...]:
        always = ("_packed", "_scale") if self.is_packed else ("", "_scale")
        return *always, *filter(self._has, ("_shape", "_zero_point", "_g_idx"))

    def _stored(self, part: str) -> str:
        return self.name + part

    def _has(self, part: str) -> bool:
        return self._stored(part) in self.checkpoint

    def _read(self, part: str) -> NDArray[Any]:
        return self.checkpoint.read(self._stored(part))

    @property
    def kind(self) -> IntegerKind:
        form = self.settings
        return kind_of(
            form.bits,
            self.shape[1],
            form.group,
            is_symmetric=form.symmetric,
            takes_int8=form.takes_int8,
        )

    @property
    def is_in_act_order(self) -> bool:
        return self.settings.act_order and self._columns() is not None

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        if self.is_packed and shape != self.shape:
            stored = self._stored("_shape" if self._has("_shape") else "_packed")
            raise TensorMismatchError(
                f"is {list(self.shape)}, but the model needs {list(shape)}",
                path=self.checkpoint.info(stored).path,
                tensor=stored,
            )
        outputs, inputs = shape
        bits, scale = self.settings.bits, self._scale_shape(shape)
        words = -(-inputs * bits // WORD_BITS)
        shapes: dict[str, Shape] = {self._stored("_scale"): scale}
        if self.is_packed:
            shapes[self._stored("_packed")] = (outputs, words)
            if self._has("_shape"):
                shapes[self._stored("_shape")] = (2,)
        else:
            shapes[self.name] = shape
        zeros = self._stored("_zero_point")
        if self._has_packed_zeros:
            shapes[zeros] = (-(-outputs * bits // WORD_BITS), *scale[1:])
        elif self._has("_zero_point") or not self.settings.symmetric:
            shapes[zeros] = scale
        if self.settings.act_order or self._has("_g_idx"):
            shapes[self._stored("_g_idx")] = (inputs,)
        return shapes

    @property
    def _has_packed_zeros(self) -> bool:
        zeros = self.checkpoint.tensors.get(self._stored("_zero_point"))
        may_be = self.is_packed and self.settings.strategy != "tensor"
        return may_be and zeros is not None and zeros.type == I32

    def _scale_shape(self, shape: Shape) -> Shape:
        stored = self.checkpoint.info(self._stored("_scale")).shape
        if self.settings.strategy == "tensor":
            return stored if math.prod(stored) == 1 else ()
        if self.settings.group is None and len(stored) == 1:
            return (shape[0],)
        return shape[0], -(-shape[1] // (self.settings.group or shape[1]))

    def rows(self) -> StoredRows:
        form, columns = self.settings, self._columns()
        zeros = self._zero_points()
        if form.symmetric and zeros is not None and np.any(zeros != form.middle):
            raise self._error("_zero_point", "contradicts the configuration: symmetric is true")
        return Integers(
            kind=self.kind,
            inputs=self.shape[1],
            group=form.group,
            scales=self._for_outputs(self._read("_scale")),
            zeros=None if form.symmetric else zeros,
            codes=self._codes,
            columns=columns,
        ).rows()

    @property
    def _codes(self) -> Codes:
        if self.is_packed:
            return Codes(self._read("_packed"))
        signed = self._read("")
        if self.settings.bits == 8 and signed.dtype == np.int8:
            return Codes(signed.view(np.uint8), flipped=0x80)
        bits = self.settings.bits
        return Codes(packed(self._unsigned(signed, ""), bits), place_bits(bits))

    def _unsigned(self, signed: NDArray[Any], part: str) -> NDArray[np.uint8]:
        """Add half of the range to signed codes."""
        if self.settings.bits == 8 and signed.dtype == np.int8:
            return signed.view(np.uint8) ^ np.uint8(0x80)
        middle = self.settings.middle
        if signed.size and not (-middle <= signed.min() and signed.max() < middle):
            raise self._error(part, f"has numbers that {self.settings.bits} bits cannot hold")
        return (signed.astype(np.int16) + middle).astype(np.uint8)

    def _zero_points(self) -> NDArray[np.uint8] | None:
        if not self._has("_zero_point"):
            return None
        stored = self._read("_zero_point")
        if not self._has_packed_zeros:
            return self._for_outputs(self._unsigned(stored, "_zero_point"))
        words = np.ascontiguousarray(stored.reshape(len(stored), -1).T).view(np.uint8)
        return unpacked(words, self.settings.bits)[:, : self.shape[0]].T

    def _for_outputs(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return scales or zero points as [outputs, groups]."""
        if values.ndim < 2:
            values = values.reshape(-1, 1)
        return np.broadcast_to(values, (self.shape[0], values.shape[1]))

    def _columns(self) -> Order | None:
        """Return the inputs group by group; None if they are stored so."""
        if self.settings.group is None or not self._has("_g_idx"):
            return None
        if np.all(self._read("_g_idx") == -1):  # the tensor was never filled
            return None
        return grouped_columns(self.checkpoint, self._stored("_g_idx"), self.settings.group)

    def _error(self, part: str, problem: str) -> CorruptFileError:
        name = self._stored(part)
        path = self.checkpoint.info(name).path
        return CorruptFileError(
            problem, path=path, tensor=name, advice="fetch the model again, or quantise it again"
        )


def packed_shape(checkpoint: Checkpoint, module: str, bits: int) -> Shape:
    """Read the shape of a packed matrix, and compare it with that of its words.

    Where none is stored, words that are full of codes tell it.
    """
    name = f"{module}.weight_shape"
    words = checkpoint.info(f"{module}.weight_packed").shape
    if name not in checkpoint and WORD_BITS % bits == 0:
        return words[0], words[1] * WORD_BITS // bits
    info = checkpoint.info(name)
    values = checkpoint.read(name).tolist() if info.shape == (2,) else []
    if all(type(size) is int and size > 0 for size in values) and len(values) == 2:
        outputs, inputs = values
        if words == (outputs, -(-inputs * bits // WORD_BITS)):
            return outputs, inputs
    raise TensorMismatchError(
        f"is {values or list(info.shape)}, which does not fit weight_packed of {list(words)} with "
        f"{bits} bits",
        path=info.path,
        tensor=name,
        advice="correct num_bits in the config.json, or fetch the model again",
    )
