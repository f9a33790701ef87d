"""Checkpoints: tensors by name from memory-mapped files, independent of the format."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from octavo.loader.errors import CorruptFileError, TensorMismatchError, quote
from octavo.loader.mapped_file import MappedFile
from octavo.loader.metadata import Metadata
from octavo.loader.tensor_type import TensorType

_MOST_NAMES_IN_A_MESSAGE = 5


class TensorInfo(Struct, frozen=True):
    """The place and type of one tensor; the last axis of `shape` varies fastest, as in numpy."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    file: MappedFile
    offset: int  # of its first byte, from the start of the file
    num_bytes: int

    @property
    def path(self) -> Path:
        return self.file.path

    @property
    def end(self) -> int:
        return self.offset + self.num_bytes


class Checkpoint:
    """The tensors and metadata of one model, over one file or many."""

    def __init__(self, path: Path, tensors: Mapping[str, TensorInfo], metadata: Metadata) -> None:
        self.path = path
        self.tensors = tensors
        self.metadata = metadata

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def num_bytes(self) -> int:
        """The size of all tensors together, as stored."""
        return sum(info.num_bytes for info in self.tensors.values())

    @property
    def files(self) -> tuple[MappedFile, ...]:
        """The files that have these tensors, each once."""
        return tuple({info.file.path: info.file for info in self.tensors.values()}.values())

    def info(self, name: str) -> TensorInfo:
        try:
            return self.tensors[name]
        except KeyError:
            raise TensorMismatchError(
                f"no tensor {quote(name)} among the {len(self.tensors):,} it holds", path=self.path
            ) from None

    def read(self, name: str) -> NDArray[Any]:
        """Return the tensor as stored: a read-only view of the file, a copy only if misaligned.

        A quantised tensor is returned as bytes, with each row's blocks along the last axis.
        """
        info = self.info(name)
        shape = info.type.stored_shape(info.shape)
        dtype = numpy_dtype(info.type)
        if info.num_bytes == 0:
            return np.empty(shape, dtype)
        flat = np.frombuffer(info.file.buffer, np.uint8, info.num_bytes, info.offset).view(dtype)
        if not flat.flags.aligned:
            flat = flat.copy()
            flat.flags.writeable = False
        return flat.reshape(shape)

    def read_float32(self, name: str) -> NDArray[np.float32]:
        """Return the tensor's values, converted or dequantised exactly."""
        from octavo.loader.dequantize import dequantize

        return dequantize(self.read(name), self.info(name).type)


def numpy_dtype(tensor_type: TensorType) -> np.dtype[Any]:
    """Return the dtype of the array that `Checkpoint.read` returns."""
    name = tensor_type.dtype_name
    if name is None:
        return np.dtype(np.uint8)
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes  # here, since few checkpoints have such types

        name = getattr(ml_dtypes, name)
    return np.dtype(name)


def check_layout(infos: Iterable[TensorInfo], *, data_start: int, gaps_allowed: bool) -> None:
    """Check that the tensors of one file, in any order, are inside its data and do not overlap."""
    end, last = data_start, None
    for info in sorted(infos, key=lambda info: (info.offset, info.end)):
        if info.end > info.file.num_bytes:
            raise CorruptFileError(
                f"its {info.num_bytes:,} bytes end at byte {info.end:,}"
                f" but the file has {info.file.num_bytes:,}",
                path=info.path,
                tensor=info.name,
                advice="the file is truncated: download it again",
            )
        if info.offset < end:
            before = f"tensor {quote(last.name)}" if last else "the header"
            raise CorruptFileError(
                f"starts at byte {info.offset:,}, inside {before}, which ends at byte {end:,}",
                path=info.path,
                tensor=info.name,
            )
        if info.offset > end and not gaps_allowed:
            raise CorruptFileError(
                f"starts at byte {info.offset:,}, after {info.offset - end:,} bytes of nothing",
                path=info.path,
                tensor=info.name,
            )
        end, last = info.end, info


def check_tensors(
    checkpoint: Checkpoint,
    expected: Mapping[str, tuple[int, ...]],
    *,
    may_be_extra: Iterable[str] = (),
) -> None:
    """Check that the checkpoint has exactly the expected tensors and shapes."""
    missing = [name for name in expected if name not in checkpoint]
    if missing:
        raise TensorMismatchError(
            f"{len(missing):,} of the {len(expected):,} tensors the model needs are missing:"
            f" {_some(missing)}",
            path=checkpoint.path,
            advice="the checkpoint is incomplete or is of another model family",
        )
    for name, shape in expected.items():
        info = checkpoint.info(name)
        if info.shape != shape:
            raise TensorMismatchError(
                f"has shape {list(info.shape)} but the model needs {list(shape)}:"
                f" {info.num_bytes:,} bytes of {info.type.name},"
                f" must be {_size(info.type, shape)}",
                path=info.path,
                tensor=name,
                advice="the configuration does not belong to these weights",
            )
    allowed = set(may_be_extra)
    extra = [name for name in checkpoint.tensors if name not in expected and name not in allowed]
    if extra:
        info = checkpoint.info(extra[0])
        raise TensorMismatchError(
            f"{len(extra):,} tensors that the model does not use: {_some(extra)}"
            f" (the first has {info.num_bytes:,} bytes)",
            path=info.path,
            advice="the checkpoint is of another model family or variant",
        )


def _size(kind: TensorType, shape: tuple[int, ...]) -> str:
    try:
        return f"{kind.num_bytes(shape):,}"
    except ValueError:
        return f"what does not divide into blocks of {kind.block_elements}"


def _some(names: list[str]) -> str:
    shown = ", ".join(quote(name) for name in names[:_MOST_NAMES_IN_A_MESSAGE])
    rest = len(names) - _MOST_NAMES_IN_A_MESSAGE
    return f"{shown} and {rest:,} more" if rest > 0 else shown
