"""MXFP4 in safetensors checkpoints: four-bit floats with a power of two for each group of 32.

`name_blocks` is [out, in/32, 16] bytes, with the even element of each pair in the low half of its
byte; `name_scales` is [out, in/32] exponents plus 127. Axes before those (experts) are kept. GGUF
orders the same numbers differently: the exponent precedes its 16 bytes, whose low halves are the
first 16 elements.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.backends.stored_rows import Bytes, StoredRows
from octavo.loader import Checkpoint
from octavo.loader.gguf.types import MXFP4
from octavo.loader.tensor_type import U8
from octavo.quant.plain import layout_of
from octavo.quant.weight_format import ModuleMatrix, Settings, Shape

GROUP = 32  # elements that share a scale
BYTES = 16  # of a group
BLOCKS, SCALES = "_blocks", "_scales"


class Mxfp4Matrix(Struct, frozen=True):
    """A matrix, or a stack of them, asked for by the name of its blocks."""

    checkpoint: Checkpoint
    name: str
    scales: str
    type: ClassVar[str] = MXFP4.name

    @property
    def tensors(self) -> tuple[str, ...]:
        return self.name, self.scales

    @property
    def shape(self) -> Shape:
        groups = self.checkpoint.info(self.scales).shape
        return (*groups[:-1], groups[-1] * GROUP) if groups else ()

    def rows(self) -> StoredRows:
        rows = gguf_rows(*map(self.checkpoint.read, self.tensors))
        return StoredRows(layout_of(MXFP4), self.shape[-1], rows)

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        groups = (*shape[:-1], -(-shape[-1] // GROUP))
        return {self.name: (*groups, BYTES), self.scales: groups}


class PackedMxfp4Matrix(ModuleMatrix, frozen=True):
    """The matrix of a module X with `X.weight_packed` [out, in/2] and `X.weight_scale`."""

    type: ClassVar[str] = MXFP4.name

    @property
    def tensors(self) -> tuple[str, ...]:
        return f"{self.name}_packed", f"{self.name}_scale"

    @property
    def shape(self) -> Shape:
        outputs, pairs = self.checkpoint.info(self.tensors[0]).shape
        return outputs, pairs * 2

    def rows(self) -> StoredRows:
        pairs, scales = map(self.checkpoint.read, self.tensors)
        rows = gguf_rows(pairs.reshape(*scales.shape, BYTES), scales)
        return StoredRows(layout_of(MXFP4), self.shape[-1], rows)

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        packed, scale = self.tensors
        groups = -(-shape[1] // GROUP)
        return {packed: (shape[0], groups * BYTES), scale: (shape[0], groups)}


class Mxfp4:
    """The format of gpt-oss; its names and types are unmistakable, so no setting is needed."""

    def unused(self, checkpoint: Checkpoint, expected: Container[str]) -> tuple[str, ...]:
        return ()

    def find(self, checkpoint: Checkpoint) -> Iterator[Mxfp4Matrix]:
        for name, info in checkpoint.tensors.items():
            scales = name.removesuffix(BLOCKS) + SCALES
            if not name.endswith(BLOCKS) or scales not in checkpoint:
                continue
            if info.type == checkpoint.info(scales).type == U8:
                yield Mxfp4Matrix(checkpoint, name, scales)


def read_mxfp4(settings: Settings) -> Mxfp4:
    """Make the format; its settings only list what is stored otherwise."""
    return Mxfp4()


def gguf_rows(blocks: NDArray[Any], scales: NDArray[Any]) -> Bytes:
    """Return all rows as GGUF stores them: [rows, bytes]."""
    pairs = blocks.view(np.uint8)
    low, high = pairs[..., : BYTES // 2], pairs[..., BYTES // 2 :]
    made = np.empty((*pairs.shape[:-1], 1 + BYTES), np.uint8)
    made[..., 0] = scales.view(np.uint8)
    made[..., 1::2] = low & 15 | high << 4
    made[..., 2::2] = low >> 4 | high & 0xF0
    return made.reshape(-1, made.shape[-2] * made.shape[-1])
