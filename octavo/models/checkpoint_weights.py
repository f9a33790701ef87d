"""A checkpoint's tensors in the form that binding needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from mmap import mmap
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import StoredRows
from octavo.loader import Checkpoint, check_tensors
from octavo.loader.dequantize import dequantize, is_readable
from octavo.loader.gguf.types import MXFP4
from octavo.loader.tensor_type import U8
from octavo.quant import mxfp4

BLOCKS, SCALES = "_blocks", "_scales"


class Weights(Protocol):
    """Tensors by their Hugging Face names, independent of the file format."""

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Return the shape of every tensor."""

    def read(self, name: str) -> NDArray[Any]:
        """Return the values of a tensor."""

    def stored(self, name: str) -> StoredRows | None:
        """Return the rows of a matrix as stored, or None if it is not stored as rows.

        For a stack of matrices, their rows follow each other.
        """

    def stored_type(self, name: str) -> str | None:
        """Return the type of the stored rows without reading them."""

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        """Refuse missing tensors, wrong shapes, and tensors neither expected nor in `extra`."""


def stored_rows(checkpoint: Checkpoint, name: str, index: int | None = None) -> StoredRows | None:
    """Return the rows of a tensor, or of one slice along its first axis, as bytes."""
    info = checkpoint.info(name)
    if len(info.shape) < 2 or (index is not None and len(info.shape) < 3):
        return None
    if not is_readable(info.type):
        return None
    values = checkpoint.read(name)
    if index is not None:
        values = values[index]
    typed = values.reshape(-1, values.shape[-1])

    def decode(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
        return dequantize(rows.view(typed.dtype), info.type)

    rows = typed.view(np.uint8)
    return StoredRows(info.type.name, info.shape[-1], rows, None, _is_mapped(rows), decode)


def _is_mapped(values: NDArray[Any]) -> bool:
    """Return whether an array is a view of a mapped file; misaligned tensors are copied."""
    owner: object = values
    while isinstance(owner, np.ndarray | memoryview):
        owner = owner.base if isinstance(owner, np.ndarray) else owner.obj
    return isinstance(owner, mmap)


class CheckpointWeights:
    """A safetensors checkpoint with its own names and values.

    MXFP4 is the exception: `name_blocks` stands for the matrix stored in it and `name_scales`.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._scales = {
            name: scales
            for name, info in checkpoint.tensors.items()
            if name.endswith(BLOCKS)
            and (scales := name.removesuffix(BLOCKS) + SCALES) in checkpoint.tensors
            and info.type == checkpoint.tensors[scales].type == U8
        }

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes = {name: info.shape for name, info in self._checkpoint.tensors.items()}
        for blocks, scales in self._scales.items():
            groups = shapes.pop(scales)
            shapes[blocks] = (*groups[:-1], groups[-1] * mxfp4.GROUP) if groups else ()
        return shapes

    def read(self, name: str) -> NDArray[np.float32]:
        if name in self._scales:
            blocks, scales = (self._checkpoint.read(key) for key in (name, self._scales[name]))
            return mxfp4.dequantize(blocks, scales)
        return self._checkpoint.read_float32(name)

    def stored(self, name: str) -> StoredRows | None:
        if name not in self._scales:
            return stored_rows(self._checkpoint, name)
        blocks, scales = (self._checkpoint.read(key) for key in (name, self._scales[name]))
        inputs = scales.shape[-1] * mxfp4.GROUP
        rows = mxfp4.gguf_rows(blocks, scales)
        return StoredRows(MXFP4.name, inputs, rows, None, False, _decode_mxfp4)

    def stored_type(self, name: str) -> str | None:
        if name in self._scales:
            return MXFP4.name
        rows = stored_rows(self._checkpoint, name)
        return None if rows is None else rows.type

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        stored: dict[str, tuple[int, ...]] = {}
        for name, shape in expected.items():
            if name in self._scales:
                stored[name], stored[self._scales[name]] = mxfp4.stored_shapes(shape)
            else:
                stored[name] = shape
        check_tensors(self._checkpoint, stored, may_be_extra=extra)


def _decode_mxfp4(rows: NDArray[np.uint8]) -> NDArray[np.float32]:
    return dequantize(rows, MXFP4)


class RenamedWeights:
    """Weights whose names have other prefixes than those of the family."""

    def __init__(self, weights: Weights, renames: Sequence[tuple[str, str]]) -> None:
        self._weights = weights
        # The family's name → the checkpoint's. If two checkpoint names map to one tensor, one of
        # them is not expected and therefore refused.
        self._stored = {_renamed(stored, renames): stored for stored in weights.shapes()}

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        shapes = self._weights.shapes()
        return {name: shapes[stored] for name, stored in self._stored.items()}

    def read(self, name: str) -> NDArray[Any]:
        return self._weights.read(self._stored[name])

    def stored(self, name: str) -> StoredRows | None:
        return self._weights.stored(self._stored[name])

    def stored_type(self, name: str) -> str | None:
        return self._weights.stored_type(self._stored[name])

    def check(self, expected: Mapping[str, tuple[int, ...]], extra: Iterable[str]) -> None:
        stored = {self._stored.get(name, name): shape for name, shape in expected.items()}
        self._weights.check(stored, [self._stored.get(name, name) for name in extra])


def _renamed(name: str, renames: Sequence[tuple[str, str]]) -> str:
    for prefix, ours in renames:
        if name.startswith(prefix):
            return ours + name.removeprefix(prefix)
    return name
