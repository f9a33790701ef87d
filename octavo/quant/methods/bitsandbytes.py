"""Checkpoints that bitsandbytes has quantised, to 4 bits (NF4, FP4) or 8 bits (LLM.int8).

With 4 bits, a matrix X.weight of any shape is one flat run of codes:

- `X.weight`: two codes in a byte, the first in the high half. Its type may be any other with as
  many bytes (bnb_4bit_quant_storage);
- `X.weight.quant_map` [16]: the value of each code;
- `X.weight.absmax`: the scale of each block of, mostly, 64 codes, in float32; or, after a second
  quantisation, codes into `X.weight.nested_quant_map` [256], whose blocks of, mostly, 256 have
  scales in `X.weight.nested_absmax`, and to which all an offset is added;
- `X.weight.quant_state.bitsandbytes__nf4` or `__fp4`: the bytes of a JSON object with the shape,
  the sizes of the blocks and the offset.

A block may cross rows. The rows then have smaller groups, each of which is in one block. A type
such as NF4By64 says that the codes have the usual values, and groups of 64 inputs a scale; NF4 says
that one of both differs.

With 8 bits, `X.weight` [out, in] is int8, and `X.SCB` [out] has the largest magnitude of each row,
so that a value is code · SCB / 127. Outliers concern activations, which keep their own types here.

Modules of llm_int8_skip_modules have plain weights.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from functools import cached_property
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta, Struct

from octavo.backends.stored_rows import Floats, StoredRows
from octavo.loader import Checkpoint
from octavo.loader.errors import (
    CorruptFileError,
    TensorMismatchError,
    UnsupportedFormatError,
    quote,
)
from octavo.loader.tensor_type import I8, MAX_DIMENSIONS, U8
from octavo.quant.integers import Codes, IntegerKind, IntegerModule, Integers, kind_of
from octavo.quant.methods.tables import TABLE, table_rows
from octavo.quant.weight_format import MAX_GROUP, Settings, Shape, StoredMatrix

_FP4 = (0.0, 0.0625, 8.0, 12.0, 4.0, 6.0, 2.0, 3.0)  # times 12
# The values of the codes: quantiles of the normal distribution, and floats with a sign.
TABLES = {
    "nf4": np.array(
        [
            *(-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.091050036),
            *(0.0, 0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684),
            1.0,
        ],
        np.float32,
    ),
    "fp4": np.array([*_FP4, *(-value for value in _FP4)], np.float32) / np.float32(12),
}
TYPES = tuple(TABLES)
_NAMED_GROUP = 64
_SAME_VALUES = 1e-6  # values that differ by less are the usual ones, rounded in another way
_STATE = ".quant_state.bitsandbytes__"
_SCALES, _ORDER = "SCB", "weight_format"
_LARGEST_CODE = 127
_NESTED_VALUES = 256
_MAX_STATE_BYTES = 4096
_MIN_GROUP = 8  # a group has a scale of four bytes

_Size = Annotated[int, Meta(ge=1, le=1 << 31)]
_Block = Annotated[int, Meta(ge=1, le=MAX_GROUP)]


class QuantState(Struct, frozen=True):
    """The shape of a matrix and the sizes of its blocks, which stand beside its tensors."""

    shape: Annotated[list[_Size], Meta(min_length=1, max_length=MAX_DIMENSIONS)]
    blocksize: _Block
    nested_blocksize: _Block | None = None
    nested_offset: float | None = None


class Bitsandbytes(Struct, frozen=True):
    """The format; which of its forms a matrix has is seen from the tensors."""

    def find(self, checkpoint: Checkpoint) -> Iterator[StoredMatrix]:
        for name, info in checkpoint.tensors.items():
            weight, _, kind = name.partition(_STATE)
            if kind in TYPES:
                yield FourBitMatrix(checkpoint, weight, kind)
            module = name.removesuffix(".weight")
            is_matrix = module != name and info.type == I8 and len(info.shape) == 2
            if is_matrix and f"{module}.{_SCALES}" in checkpoint:
                yield EightBitMatrix(checkpoint, module)

    def unused(self, checkpoint: Checkpoint, expected: Container[str]) -> tuple[str, ...]:
        return ()


class FourBitMatrix(Struct, frozen=True, dict=True):
    """A matrix of codes into a table."""

    checkpoint: Checkpoint
    name: str
    kind: str

    @property
    def tensors(self) -> tuple[str, ...]:
        nested = ("nested_absmax", "nested_quant_map") if self._is_nested else ()
        parts = ("absmax", *nested, "quant_map")
        return self.name, *(f"{self.name}.{part}" for part in parts), self._state_name

    @property
    def type(self) -> str:
        name = self.kind.upper()
        return f"{name}By{_NAMED_GROUP}" if self._is_named else name

    @property
    def shape(self) -> Shape:
        return tuple(self._state.shape)

    @property
    def _state_name(self) -> str:
        return f"{self.name}{_STATE}{self.kind}"

    @property
    def _is_nested(self) -> bool:
        return self._state.nested_blocksize is not None

    @cached_property
    def _state(self) -> QuantState:
        info = self.checkpoint.info(self._state_name)
        reason = f"has {info.num_bytes:,} bytes; at most {_MAX_STATE_BYTES:,} are read"
        if info.num_bytes <= _MAX_STATE_BYTES:
            data = self.checkpoint.read(self._state_name).tobytes()
            try:
                return msgspec.json.decode(data, type=QuantState)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                reason = f"is not the description of a matrix: {quote(str(error))}"
        raise CorruptFileError(reason, path=info.path, tensor=self._state_name)

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        state, state_info = self._state, self.checkpoint.info(self._state_name)
        if shape != self.shape:
            raise TensorMismatchError(
                f"states the shape {list(self.shape)} but the model needs {list(shape)}",
                path=state_info.path,
                tensor=self._state_name,
                advice="the configuration does not belong to these weights",
            )
        self._check_group()
        elements = math.prod(shape)
        blocks = -(-elements // state.blocksize)
        bytes_of_element = 1
        if self.name in self.checkpoint:
            bytes_of_element = self.checkpoint.info(self.name).type.block_bytes
        shapes: dict[str, Shape] = {
            self.name: (-(-elements // (2 * bytes_of_element)), 1),
            f"{self.name}.absmax": (blocks,),
            f"{self.name}.quant_map": (TABLE,),
            self._state_name: state_info.shape,
        }
        if state.nested_blocksize is not None:
            shapes[f"{self.name}.nested_absmax"] = (-(-blocks // state.nested_blocksize),)
            shapes[f"{self.name}.nested_quant_map"] = (_NESTED_VALUES,)
        return shapes

    @property
    def _group(self) -> int:
        """The largest group that divides rows and blocks."""
        return math.gcd(self.shape[-1], self._state.blocksize)

    @cached_property
    def _is_named(self) -> bool:
        name = f"{self.name}.quant_map"
        if self._group % _NAMED_GROUP or name not in self.checkpoint:
            return False
        table = self.checkpoint.read_float32(name)
        usual = TABLES[self.kind]
        return table.shape == usual.shape and np.allclose(table, usual, rtol=0, atol=_SAME_VALUES)

    def _check_group(self) -> None:
        if self._group % 2 or self._group < _MIN_GROUP:
            raise UnsupportedFormatError(
                f"rows of {self.shape[-1]:,} codes cross the blocks of {self._state.blocksize:,} "
                f"codes that share a scale in parts of {self._group}; supported are parts of an "
                f"even size from {_MIN_GROUP}",
                path=self.checkpoint.info(self._state_name).path,
                tensor=self.name,
                advice="use the unquantised model or a GGUF file",
            )

    def rows(self) -> StoredRows:
        self._check_group()
        inputs, group = self.shape[-1], _NAMED_GROUP if self._is_named else self._group
        outputs, groups = math.prod(self.shape[:-1]), inputs // group
        codes = self.checkpoint.read(self.name).view(np.uint8).reshape(-1)
        pairs = codes[: outputs * inputs // 2].reshape(outputs, groups, group // 2)
        blocks = np.arange(outputs * groups).reshape(outputs, groups) * group
        scales = self._scales()[blocks // self._state.blocksize]
        table = self.checkpoint.read_float32(f"{self.name}.quant_map")
        layout, rows = table_rows(pairs, scales, table, self.type)
        return StoredRows(layout, inputs, rows)

    def _scales(self) -> Floats:
        """Return the scale of each block."""
        state, name = self._state, f"{self.name}.absmax"
        if state.nested_blocksize is None:
            return self.checkpoint.read_float32(name)
        info = self.checkpoint.info(name)
        if info.type != U8:
            raise CorruptFileError(
                f"is of the type {info.type.name}, must be U8: the scales are quantised too",
                path=info.path,
                tensor=name,
            )
        values = self.checkpoint.read_float32(f"{self.name}.nested_quant_map")
        outer = self.checkpoint.read_float32(f"{self.name}.nested_absmax")
        codes = self.checkpoint.read(name)
        with np.errstate(all="ignore"):  # damaged scales may be infinite or NaN
            scales: Floats = values[codes] * outer[np.arange(len(codes)) // state.nested_blocksize]
            scales += np.float32(state.nested_offset or 0.0)
        return scales


class EightBitMatrix(IntegerModule, frozen=True):
    """A matrix of signed bytes with a scale for each row."""

    @property
    def tensors(self) -> tuple[str, ...]:
        names = (self.name, f"{self.module}.{_SCALES}")
        order = f"{self.module}.{_ORDER}"
        return (*names, order) if order in self.checkpoint else names

    @property
    def kind(self) -> IntegerKind:
        return kind_of(8, self.shape[1], None, is_symmetric=True)

    @property
    def shape(self) -> Shape:
        return self.checkpoint.info(self.name).shape

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        shapes = {name: self.checkpoint.info(name).shape for name in self.tensors}
        return shapes | {self.name: shape, f"{self.module}.{_SCALES}": shape[:1]}

    def rows(self) -> StoredRows:
        self._check_order()
        scales = self.checkpoint.read_float32(f"{self.module}.{_SCALES}")
        signed = self.checkpoint.read(self.name)
        return Integers(
            kind=self.kind,
            inputs=self.shape[1],
            group=None,
            scales=(scales / np.float32(_LARGEST_CODE))[:, None],
            zeros=None,
            codes=Codes(signed.view(np.uint8), flipped=0x80),
        ).rows()

    def _check_order(self) -> None:
        """Refuse the orders that old graphics cards need; 0 is row by row."""
        name = f"{self.module}.{_ORDER}"
        if name in self.checkpoint and self.checkpoint.read(name).any():
            raise UnsupportedFormatError(
                "the weights are stored in an order other than row by row",
                path=self.checkpoint.info(name).path,
                tensor=name,
                advice="save the model again with a current version of bitsandbytes",
            )


def read_bitsandbytes(settings: Settings) -> Bitsandbytes:
    """Check the settings; the tensors themselves say the rest."""
    widths = [settings.boolean(f"load_in_{bits}bit", False) for bits in (4, 8)]
    if sum(widths) != 1:
        raise UnsupportedFormatError(
            "quantization_config: exactly one of load_in_4bit and load_in_8bit must be true"
        )
    kind = settings.string("bnb_4bit_quant_type", "fp4")
    if widths[0] and kind not in TYPES:
        raise UnsupportedFormatError(
            f"bitsandbytes' bnb_4bit_quant_type {quote(kind)} is not supported; supported are: "
            f"{', '.join(TYPES)}"
        )
    return Bitsandbytes()
