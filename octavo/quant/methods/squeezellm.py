"""SqueezeLLM in safetensors checkpoints: codes into a table for each row, and sparse outliers.

A module X with `in` inputs and `out` outputs has

- `X.qweight` [in·bits/32, out]: words of 32 bits with the codes (3 or 4 bits) of consecutive
  inputs of an output, the first in the lowest bits; codes of 3 bits may lie in two words;
- `X.lookup_table` [out, 2^bits]: the values of each output's codes;
- `X.rows` [out + 1], `X.cols`, `X.vals`, if it has outliers: numbers that are added to those of the
  table. Those of output i are from rows[i] to rows[i + 1], at the inputs cols;
- `X.full_rows` [in, n], `X.full_row_indices` [n], if some outputs are added whole.

A sum has no table, so that the rows are floats; what they are made of is not kept.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.backends.code_bits import ELEMENTS_AT_ONCE, unpacked
from octavo.backends.stored_rows import Bytes, Floats, RowLayout, StoredRows
from octavo.loader import Checkpoint
from octavo.loader.errors import CorruptFileError, UnsupportedFormatError
from octavo.loader.tensor_type import I32
from octavo.quant.methods.word_modules import WORD_BITS
from octavo.quant.weight_format import ModuleMatrix, Settings, Shape

BITS = (3, 4)
_DENSE = ("qweight", "lookup_table")
_SPARSE = ("rows", "cols", "vals")
_FULL = ("full_rows", "full_row_indices")


def _decode(rows: Bytes) -> Floats:
    return np.ascontiguousarray(rows).view(np.float32)


LAYOUT = RowLayout("SQUEEZELLM", 1, 4, _decode)


class SqueezeLlm(Struct, frozen=True):
    """The format, with the settings of one checkpoint."""

    bits: int

    def find(self, checkpoint: Checkpoint) -> Iterator[SqueezeLlmMatrix]:
        for name, info in checkpoint.tensors.items():
            module = name.removesuffix(".qweight")
            if module != name and info.type == I32 and len(info.shape) == 2:
                yield SqueezeLlmMatrix(checkpoint, module, self.bits)

    def unused(self, checkpoint: Checkpoint, expected: Container[str]) -> Iterator[str]:
        """Yield how a card shares the outliers among its threads."""
        yield from (name for name in checkpoint.tensors if name.endswith(".startrows"))


class SqueezeLlmMatrix(ModuleMatrix, frozen=True):
    """The matrix of one module."""

    bits: int
    type: ClassVar[str] = LAYOUT.name

    @property
    def tensors(self) -> tuple[str, ...]:
        parts = [*_DENSE, *(part for kind in (_SPARSE, _FULL) if self._has(kind) for part in kind)]
        return tuple(f"{self.module}.{part}" for part in parts)

    @property
    def shape(self) -> Shape:
        words, outputs = self.checkpoint.info(f"{self.module}.qweight").shape
        return outputs, words * WORD_BITS // self.bits

    def _has(self, parts: tuple[str, ...]) -> bool:
        """Return whether the module has any of some tensors that belong together."""
        return any(f"{self.module}.{part}" in self.checkpoint for part in parts)

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        outputs, inputs = shape
        if inputs * self.bits % WORD_BITS:
            raise UnsupportedFormatError(
                f"the codes of {inputs:,} inputs do not fill words of {WORD_BITS} bits",
                path=self.checkpoint.path,
                tensor=f"{self.module}.qweight",
                advice="use the unquantised model or a GGUF file",
            )
        shapes: dict[str, Shape] = {
            "qweight": (inputs * self.bits // WORD_BITS, outputs),
            "lookup_table": (outputs, 1 << self.bits),
        }
        if self._has(_SPARSE):
            count = self._count("cols")
            shapes |= {"rows": (outputs + 1,), "cols": (count,), "vals": (count,)}
        if self._has(_FULL):
            count = self._count("full_row_indices")
            shapes |= {"full_rows": (inputs, count), "full_row_indices": (count,)}
        return {f"{self.module}.{part}": shape for part, shape in shapes.items()}

    def _count(self, part: str) -> int:
        name = f"{self.module}.{part}"
        shape = self.checkpoint.info(name).shape if name in self.checkpoint else ()
        return shape[0] if shape else 0

    def rows(self) -> StoredRows:
        outputs, inputs = self.shape
        values = np.empty((outputs, inputs), np.float32)
        words = self.checkpoint.read(f"{self.module}.qweight").view(np.uint8)
        words = words.reshape(-1, outputs, WORD_BITS // 8)
        tables = self.checkpoint.read_float32(f"{self.module}.lookup_table")
        step = max(1, ELEMENTS_AT_ONCE // inputs) if inputs else max(1, outputs)
        for start in range(0, outputs, step):
            part = slice(start, start + step)
            streams = words[:, part].swapaxes(0, 1).reshape(len(tables[part]), -1)
            codes = unpacked(streams, self.bits)[:, :inputs]
            values[part] = np.take_along_axis(tables[part], codes.astype(np.int64), axis=1)
        with np.errstate(all="ignore"):  # damaged values may be infinite or NaN
            self._add_outliers(values)
        return StoredRows(LAYOUT, inputs, values.view(np.uint8))

    def _add_outliers(self, values: Floats) -> None:
        outputs, inputs = values.shape
        if self._has(_SPARSE):
            columns = self._indices("cols", inputs)
            starts = self._indices("rows", len(columns) + 1)
            counts = np.diff(starts)
            if starts[0] != 0 or starts[-1] != len(columns) or np.any(counts < 0):
                raise self._corrupt("rows", f"does not divide the {len(columns):,} outliers")
            owners = np.repeat(np.arange(outputs), counts)
            added = self.checkpoint.read_float32(f"{self.module}.vals")
            np.add.at(values, (owners, columns), added)
        if self._has(_FULL):
            owners = self._indices("full_row_indices", outputs)
            whole = self.checkpoint.read_float32(f"{self.module}.full_rows")
            np.add.at(values, owners, whole.T)

    def _indices(self, part: str, end: int) -> NDArray[Any]:
        """Read indices, all of which must be less than `end`."""
        name = f"{self.module}.{part}"
        found = self.checkpoint.read(name)
        if self.checkpoint.info(name).type != I32:
            raise self._corrupt(part, "is not of the type I32")
        if len(found) and (found.min() < 0 or found.max() >= end):
            raise self._corrupt(part, f"has an index outside of the {end:,} that there are")
        return found

    def _corrupt(self, part: str, message: str) -> CorruptFileError:
        name = f"{self.module}.{part}"
        return CorruptFileError(message, path=self.checkpoint.info(name).path, tensor=name)


def read_squeezellm(settings: Settings) -> SqueezeLlm:
    """Read and check the settings of a checkpoint, whose number of bits has one of two names."""
    key = "bits" if settings.has("bits") else "wbits"
    bits = settings.integer(key)
    if bits not in BITS:
        raise UnsupportedFormatError(
            f"{key}: SqueezeLLM weights of {bits} bits are not supported; supported are: 3, 4",
            advice="use the unquantised model or a GGUF file",
        )
    return SqueezeLlm(bits)
