"""HQQ in safetensors checkpoints: integers in groups with a scale and a zero point of any value.

A module X whose weight is of the shape `X.shape` has groups of `X.group_size` consecutive inputs
(none: whole rows), counted through the whole matrix, and

- `X.W_q` [groups / codes in a word, group size]: the groups, in as many parts of equal length as
  codes are in a word, with the first part in the highest bits. Words have 8 bits, and those with
  codes of 3 bits have 32 with ten codes; the last part is then filled up. A type of floats means
  their bytes (`X.view_as_float`);
- `X.scale`, `X.zero` [groups, 1]: floats; the value of a code is (code - zero) · scale;
- `X.nbits`, `X.axis` and others, each a tensor with one number or the characters of a word.

The groups of axis 0 are of outputs, and are refused.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

import numpy as np
from msgspec import Struct

from octavo.backends.stored_rows import StoredRows
from octavo.loader import Checkpoint
from octavo.loader.errors import CheckpointError, CorruptFileError, UnsupportedFormatError
from octavo.loader.tensor_type import I32, I64, U8
from octavo.quant.integers import Codes, IntegerKind, Integers, as_scales, kind_of
from octavo.quant.weight_format import MAX_GROUP, ModuleMatrix, Settings, Shape

_Error = type[CheckpointError]
CODES_IN_A_WORD = {8: 1, 4: 2, 3: 10, 2: 4, 1: 8}
_REQUIRED = ("W_q", "scale", "zero", "shape", "nbits", "axis")
_OTHERS = (
    "group_size",
    "packing",
    "unpack_view_dtype",
    "view_as_float",
    "quant_scale",
    "quant_zero",
    "compute_dtype",
    "offload_meta",
    "encoded_state_dict",
    "stores_quant_config",
    "channel_wise",
    "optimize",
    "round_zero",
)
_MAX_SIZE = 1 << 31
_GROUP_MULTIPLE = 8  # groups then fill whole bytes


class Hqq(Struct, frozen=True):
    """The format; each module has its own settings beside its codes."""

    def find(self, checkpoint: Checkpoint) -> Iterator[HqqMatrix]:
        for name in checkpoint.tensors:
            module = name.removesuffix(".W_q")
            if module != name:
                yield HqqMatrix(checkpoint, module)

    def unused(self, checkpoint: Checkpoint, expected: Container[str]) -> tuple[str, ...]:
        return ()


class HqqMatrix(ModuleMatrix, frozen=True):
    """The matrix of one module."""

    @property
    def tensors(self) -> tuple[str, ...]:
        names = (f"{self.module}.{part}" for part in (*_REQUIRED, *_OTHERS))
        return tuple(name for name in names if name in self.checkpoint)

    @property
    def type(self) -> str:
        return self._kind.name

    @property
    def _kind(self) -> IntegerKind:
        return kind_of(self._bits, self.shape[1], self._group, is_symmetric=False)

    @property
    def shape(self) -> Shape:
        name = f"{self.module}.shape"
        if name not in self.checkpoint:
            return ()
        info = self.checkpoint.info(name)
        if info.type == I64 and info.shape == (2,):
            outputs, inputs = self.checkpoint.read(name).tolist()
            if 0 < outputs < _MAX_SIZE and 0 < inputs < _MAX_SIZE:
                return outputs, inputs
        raise CorruptFileError("is not the shape of a matrix", path=info.path, tensor=name)

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        missing = [f"{self.module}.{part}" for part in _REQUIRED]
        missing = [name for name in missing if name not in self.checkpoint]
        if missing:
            return dict.fromkeys(missing, ())
        if shape != self.shape:
            raise self._error(
                CorruptFileError,
                "shape",
                f"states {list(self.shape)} but the model needs {list(shape)}",
            )
        groups, group = shape[0] * shape[1] // self._group, self._group
        word = self.checkpoint.info(f"{self.module}.W_q").type.block_bytes
        num_bytes = group * (4 if self._bits == 3 else 1)
        shapes = {name: self.checkpoint.info(name).shape for name in self.tensors}
        return shapes | {
            f"{self.module}.W_q": (-(-groups // CODES_IN_A_WORD[self._bits]), num_bytes // word),
            f"{self.module}.scale": (groups, 1),
            f"{self.module}.zero": (groups, 1),
        }

    @property
    def _bits(self) -> int:
        bits = self._integer("nbits")
        if bits not in CODES_IN_A_WORD:
            supported = ", ".join(map(str, sorted(CODES_IN_A_WORD)))
            message = f"codes of {bits} bits are not supported; supported are: {supported}"
            raise self._error(UnsupportedFormatError, "nbits", message)
        return bits

    @property
    def _group(self) -> int:
        """The number of inputs that share a scale."""
        inputs = self.shape[1]
        if self._integer("axis") != 1:
            raise self._error(
                UnsupportedFormatError,
                "axis",
                "groups of outputs are not supported; supported is axis 1",
                "quantise the model again with axis=1, or use a GGUF file",
            )
        if f"{self.module}.group_size" not in self.checkpoint:
            group = inputs
        else:
            group = self._integer("group_size")
            if not 0 < group <= MAX_GROUP or inputs % group:
                message = f"groups of {group:,} do not divide the {inputs:,} inputs of a row"
                raise self._error(UnsupportedFormatError, "group_size", message)
        if group % _GROUP_MULTIPLE:
            message = f"groups of {group:,} inputs are not supported; supported are multiples of 8"
            raise self._error(UnsupportedFormatError, "shape", message)
        return group

    def _integer(self, part: str) -> int:
        name = f"{self.module}.{part}"
        info, value = self.checkpoint.info(name), self.checkpoint.read(name)
        if info.type not in (I32, I64, U8) or value.size != 1:
            raise self._error(CorruptFileError, part, "is not a whole number")
        return int(value.reshape(-1)[0])

    def _error(self, kind: _Error, part: str, message: str, advice: str = "") -> CheckpointError:
        name = f"{self.module}.{part}"
        return kind(
            message,
            path=self.checkpoint.info(name).path,
            tensor=name,
            advice=advice or "use the unquantised model or a GGUF file",
        )

    def rows(self) -> StoredRows:
        (outputs, inputs), bits, group = self.shape, self._bits, self._group
        words = self.checkpoint.read(f"{self.module}.W_q")
        words = words.view(np.uint32 if bits == 3 else np.uint8)
        parts = CODES_IN_A_WORD[bits]
        in_order = words.reshape(outputs, inputs) if parts == 1 else words
        codes = Codes(in_order, parts=0 if parts == 1 else parts)
        scales, zeros = (
            self.checkpoint.read(f"{self.module}.{part}").reshape(outputs, inputs // group)
            for part in ("scale", "zero")
        )
        return Integers(
            kind=self._kind,
            inputs=inputs,
            group=group,
            scales=scales,
            zeros=as_scales(zeros),
            codes=codes,
        ).rows()


def read_hqq(settings: Settings) -> Hqq:
    """Make the format; its settings are repeated beside each module's codes, and read there."""
    return Hqq()
