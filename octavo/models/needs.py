"""The tensors that a declared model needs, each with its sources in a checkpoint."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from octavo.layers import (
    Embedding,
    FirstOf,
    HeadRows,
    Linear,
    MatrixStack,
    Model,
    Module,
    PositionEmbedding,
    Slices,
    StoredTensor,
    TensorDeclaration,
    TypeEmbedding,
    WeightSource,
)
from octavo.models.config_reader import ConfigurationError

Source = StoredTensor | HeadRows


class Need(Struct, frozen=True):
    """One tensor of one layer, and the checkpoint's tensors that it is made of."""

    module: Module
    tensor: str
    declared: TensorDeclaration
    sources: tuple[Source, ...]  # one, or one for each part, stacked along the output

    @property
    def matrix(self) -> tuple[Linear, str] | None:
        """The projection (of each expert or head) that the tensor belongs to, and its name there.

        None for tensors outside projections: norms, embeddings.
        """
        if isinstance(self.module, MatrixStack):
            return self.module.matrix(self.tensor), self.tensor.rpartition("_")[2]
        return (self.module, self.tensor) if isinstance(self.module, Linear) else None

    @property
    def is_matrix(self) -> bool:
        """True for weights of products and lookups; others are read as values."""
        if len(self.declared.shape) == 1:
            return False
        if self.matrix is None:
            return isinstance(self.module, Embedding | PositionEmbedding | TypeEmbedding)
        return self.matrix[1] == "weight"

    def names(self, source: Source) -> list[str]:
        """Return the names of the checkpoint's tensors for a source: one, or one for each slice."""
        if "@" not in source.name:
            return [source.name]
        return [source.name.replace("@", str(index)) for index in range(self.declared.shape[0])]

    def shapes(self) -> Iterable[tuple[int, ...]]:
        """Yield the shape that each source, or each slice of it, must have in the checkpoint."""
        for source, rows in zip(self.sources, self._rows(), strict=True):
            shape = list(self.declared.shape)
            if isinstance(source, HeadRows):
                yield shape[0] * source.per_head, shape[1 if source.transposed else 2]
                continue
            axis = 1 if isinstance(self.module, MatrixStack) else 0
            if rows is not None:
                shape[axis] = rows
            shape[axis] += source.skipped
            if "@" in source.name:
                del shape[0]
            if source.transposed:
                shape[-2:] = reversed(shape[-2:])
            yield tuple(shape)

    def _rows(self) -> list[int | None]:
        """Return the number of rows of each source; None: all of the layer's."""
        if len(self.sources) == 1 or self.matrix is None:
            return [None] * len(self.sources)
        return [part.rows for part in self.matrix[0].parts]


def find_needs(model: Model, available: Container[str]) -> Iterable[Need]:
    """Yield every declared tensor with its sources; set optional ones that are absent to None."""
    table = model.weights()
    for path, module in model.walk():
        for tensor, declared in module.tensors().items():
            if model.tied and module is model.head and tensor == "weight":
                continue
            sources = tuple(_sources(path, tensor, table, available))
            if declared.optional and sources[0].name not in available:
                setattr(module, tensor, None)
                continue
            yield Need(module, tensor, declared, sources)


def _sources(
    path: str, tensor: str, table: Mapping[str, WeightSource], available: Container[str]
) -> Iterable[Source]:
    """Look a layer's tensor up in the table: by its whole name, then without the last word."""
    stem, _, word = tensor.rpartition("_")
    for key, suffix in (
        (f"{path}.{tensor}", ""),
        (path, f".{tensor}"),
        (f"{path}.{stem}", f".{word}"),
    ):
        pattern = ".".join("*" if part.isdigit() else part for part in key.split("."))
        source = table.get(pattern)
        if source is not None:
            number = next((part for part in key.split(".") if part.isdigit()), "")
            for found in expand(source, suffix, number, available):
                # The bias of a transposed weight has one axis, so there is nothing to transpose.
                is_vector = suffix == ".bias"
                yield replace(found, transposed=False) if is_vector else found
            return
    raise ConfigurationError(
        f"{path}.{tensor} has no entry in the family's weights(): this is "
        "a defect in octavo.models; please report it"
    )


def expand(
    source: WeightSource, suffix: str, number: str, available: Container[str]
) -> Iterable[Source]:
    """Yield the tensors of a source, for the block of this number."""
    match source:
        case str():
            yield StoredTensor(source.replace("*", number) + suffix)
        case StoredTensor() | HeadRows():
            yield replace(source, name=source.name.replace("*", number) + suffix)
        case Slices():
            yield from expand(source.names, suffix, number, available)
        case FirstOf():
            ways = [list(expand(way, suffix, number, available)) for way in source.ways]
            present = (way for way in ways if way[0].name.replace("@", "0") in available)
            yield from next(present, ways[0])
        case _:
            for part in source:
                yield from expand(part, suffix, number, available)
