"""The interface of a stored format: the matrices that it recognises, and their rows."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, Protocol

from msgspec import Struct

from octavo.backends.stored_rows import StoredRows
from octavo.loader import Checkpoint
from octavo.loader.errors import UnsupportedFormatError, quote

Shape = tuple[int, ...]

# The largest number of inputs or outputs that share a scale. Rows are padded to whole groups, so a
# damaged size would take memory.
MAX_GROUP = 4096

# Scales of activations and of the KV cache, which have scales of their own here, if any.
_UNUSED = (
    ".input_scale",
    ".input_scale_ub",
    ".input_zero_point",
    ".input_global_scale",
    ".output_scale",
    ".output_zero_point",
    ".k_scale",
    ".v_scale",
    ".q_scale",
    ".kv_scale",
)


class Settings(Protocol):
    """Typed access to a checkpoint's quantization_config; wrong values raise an error."""

    @property
    def values(self) -> Mapping[str, Any]: ...
    def has(self, key: str) -> bool: ...
    def part(self, key: str) -> Settings: ...
    def over(self, defaults: Mapping[str, Any]) -> Settings: ...
    def integer(self, key: str, default: int | None = None) -> int: ...
    def boolean(self, key: str, default: bool | None = None) -> bool: ...
    def string(self, key: str, default: str | None = None) -> str: ...


class StoredMatrix(Protocol):
    """A matrix, or a stack of matrices, that a format recognised by the names of its tensors."""

    @property
    def name(self) -> str:
        """The name by which a model asks for it."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """The checkpoint's tensors that it is stored in."""

    @property
    def shape(self) -> Shape:
        """The shape of the matrix; () if its tensors cannot be of any."""

    @property
    def type(self) -> str:
        """The type of its rows, known without reading them."""

    def rows(self) -> StoredRows:
        """Read the rows; those of a stack follow each other."""

    def stored_shapes(self, shape: Shape) -> Mapping[str, Shape]:
        """Return the shapes that its tensors must have for a matrix of this shape."""


class ModuleMatrix(Struct, frozen=True):
    """The matrix of a module X, which a model asks for as X.weight."""

    checkpoint: Checkpoint
    module: str

    @property
    def name(self) -> str:
        return f"{self.module}.weight"


class WeightFormat(Protocol):
    """A stored format of matrices, with the settings of one checkpoint."""

    def find(self, checkpoint: Checkpoint) -> Iterable[StoredMatrix]:
        """Find the matrices whose tensors have this format's names and types."""

    def unused(self, checkpoint: Checkpoint, expected: Container[str]) -> Iterable[str]:
        """Return tensors that the format adds to a checkpoint and that no matrix needs."""


def unused_scales(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield the tensors that only a computation in other types of activations needs."""
    yield from (name for name in checkpoint.tensors if name.endswith(_UNUSED))


def unsupported(key: str, value: object, supported: str) -> UnsupportedFormatError:
    """Return the error of a setting that is not supported."""
    shown = "null" if value is None else quote(str(value))
    return UnsupportedFormatError(
        f"quantization_config: {key} = {shown} is not supported; supported are: {supported}",
        advice="use the unquantised model or a GGUF file",
    )
