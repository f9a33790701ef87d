"""Binding of a declared model to a backend and a checkpoint.

For each tensor that a layer declares, binding decides where it is in the checkpoint (from the
family's `weights`), which slice of it this rank owns (octavo.quant.compose), and what the backend
makes of it. All names and shapes are checked before anything is read, so that a wrong checkpoint
fails at once.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import Backend, StoredRows
from octavo.distributed.context import ALONE, ParallelContext
from octavo.layers import (
    CausalLM,
    FirstOf,
    LayerNorm,
    Linear,
    Module,
    PagedAttention,
    Slices,
    StoredTensor,
    TensorDeclaration,
    Value,
    WeightSource,
)
from octavo.layers.moe import ExpertMatrices
from octavo.models.checkpoint_weights import RenamedWeights, Weights
from octavo.models.config_reader import ConfigurationError
from octavo.quant.compose import ShardError, part_run, row_runs, shard, split_parts
from octavo.quant.scheme import PLAIN

Floats = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Need:
    """One tensor of one layer, and the checkpoint's tensors that it is made of."""

    module: Module
    tensor: str
    declared: TensorDeclaration
    sources: tuple[StoredTensor, ...]  # one, or one for each part, stacked along the output

    @property
    def matrix(self) -> tuple[Linear, str] | None:
        """The projection (of each expert) that the tensor belongs to, and its name there.

        None for tensors outside projections: norms, embeddings.
        """
        if isinstance(self.module, ExpertMatrices):
            return self.module.matrix(self.tensor), self.tensor.rpartition("_")[2]
        return (self.module, self.tensor) if isinstance(self.module, Linear) else None

    def names(self, source: StoredTensor) -> list[str]:
        """Return the names of the checkpoint's tensors for a source: one, or one for each slice."""
        if "@" not in source.name:
            return [source.name]
        return [source.name.replace("@", str(index)) for index in range(self.declared.shape[0])]

    def shapes(self) -> Iterable[tuple[int, ...]]:
        """Yield the shape that each source, or each slice of it, must have in the checkpoint."""
        for source, rows in zip(self.sources, self._rows(), strict=True):
            shape = list(self.declared.shape)
            axis = 1 if isinstance(self.module, ExpertMatrices) else 0
            if rows is not None:
                shape[axis] = rows
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


def bind(
    model: CausalLM, backend: Backend, weights: Weights, context: ParallelContext = ALONE
) -> None:
    """Give every layer its tensors."""
    check_ranks(model, context)
    if model.renames:
        weights = RenamedWeights(weights, model.renames)
    needs = list(find_needs(model, weights.shapes()))
    check(model, needs, weights)
    for need in needs:
        setattr(need.module, need.tensor, _value(need, backend, weights, context))
    if model.tied:
        model.head.weight = model.embed.weight


def _value(need: Need, backend: Backend, weights: Weights, context: ParallelContext) -> Value:
    """Make the backend's value of a tensor; a matrix keeps its stored rows if there is one rank."""
    is_bias = need.matrix is not None and need.matrix[1] == "bias"
    if len(need.declared.shape) == 1 or is_bias or isinstance(need.module, LayerNorm):
        return backend.parameter(assemble(need, weights.read, context))
    layer = need.module if need.matrix is None else need.matrix[0]
    if context.ranks > 1:
        matrices = _cut_floats(need, assemble(need, weights.read, context), context)
    else:
        matrices = stored_matrices(need, weights)
    if isinstance(need.module, ExpertMatrices):
        return backend.experts(matrices, layer)
    return backend.matrix(matrices[0], layer)


def find_needs(model: CausalLM, available: Container[str]) -> Iterable[Need]:
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
) -> Iterable[StoredTensor]:
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
            for found in _expand(source, suffix, number, available):
                # The bias of a transposed weight has one axis, so there is nothing to transpose.
                is_vector = suffix == ".bias"
                yield replace(found, transposed=False) if is_vector else found
            return
    raise ConfigurationError(
        f"{path}.{tensor} has no entry in the family's weights(): this is "
        "a defect in octavo.models; please report it"
    )


def _expand(
    source: WeightSource, suffix: str, number: str, available: Container[str]
) -> Iterable[StoredTensor]:
    match source:
        case str():
            yield StoredTensor(source.replace("*", number) + suffix)
        case StoredTensor():
            yield replace(source, name=source.name.replace("*", number) + suffix)
        case Slices():
            yield from _expand(source.names, suffix, number, available)
        case FirstOf():
            ways = [list(_expand(way, suffix, number, available)) for way in source.ways]
            present = (way for way in ways if way[0].name.replace("@", "0") in available)
            yield from next(present, ways[0])
        case _:
            for part in source:
                yield from _expand(part, suffix, number, available)


# checking


def check_ranks(model: CausalLM, context: ParallelContext) -> None:
    """Refuse a model that cannot be split over ranks."""
    for path, module in model.walk():
        if context.ranks > 1 and isinstance(module, PagedAttention) and module.norm_whole:
            raise ShardError(
                f"{path}: this model normalises all its heads together, but each of "
                f"{context.ranks} ranks would have only some of them; use one rank"
            )


def check(model: CausalLM, needs: Sequence[Need], weights: Weights) -> None:
    """Compare the needed tensors with those in the checkpoint, before anything is read."""
    expected: dict[str, tuple[int, ...]] = {}
    for need in needs:
        for source, shape in zip(need.sources, need.shapes(), strict=True):
            expected.update(dict.fromkeys(need.names(source), shape))
    available = weights.shapes()
    ignored = model.ignored
    if model.tied:
        head = _expand(model.weights()["head"], ".weight", "", available)
        ignored = (*ignored, *(source.name for source in head))
    extra = [
        name
        for name in available
        if name not in expected and any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    weights.check(expected, extra)


# reading


def stored_matrices(need: Need, weights: Weights) -> list[list[StoredRows]]:
    """Return the stored parts of a matrix, one below the other; for experts, of each matrix."""
    count = need.declared.shape[0] if isinstance(need.module, ExpertMatrices) else 1
    stacks = [_stored_source(need, source, count, weights) for source in need.sources]
    if need.matrix is not None and len(stacks) == 1:
        sizes = [part.rows for part in need.matrix[0].parts]
        return [_cut(rows, sizes) for rows in stacks[0]]
    return [list(parts) for parts in zip(*stacks, strict=True)]


def _stored_source(
    need: Need, source: StoredTensor, count: int, weights: Weights
) -> list[StoredRows]:
    """Return the rows of one source, in the layer's order, for each of `count` matrices."""
    slices = []
    for name in need.names(source):
        rows = None if source.transposed else weights.stored(name)
        if rows is None:
            values = weights.read(name)
            values = np.swapaxes(values, -1, -2) if source.transposed else values
            rows = StoredRows.of(values.reshape(-1, values.shape[-1]))
        slices.append(rows)
    if len(slices) < count:  # all matrices are stored as one tensor
        slices = _cut(slices[0], [len(slices[0]) // count] * count)
    if source.rows is None:
        return slices
    order = np.asarray(source.rows, np.int64)
    return [rows.reordered(order) for rows in slices]


def _cut(rows: StoredRows, sizes: Sequence[int]) -> list[StoredRows]:
    ends = np.cumsum(sizes).tolist()
    return [rows.cut(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _cut_floats(need: Need, array: Floats, context: ParallelContext) -> list[list[StoredRows]]:
    """Cut this rank's share, assembled as floats, into the parts of each matrix."""
    matrices = array if isinstance(need.module, ExpertMatrices) else array[None]
    if need.matrix is None:
        return [[StoredRows.of(matrix)] for matrix in matrices]
    sizes = [len(run) for run in row_runs(need.matrix[0], context)]
    return [_cut(StoredRows.of(matrix), sizes) for matrix in matrices]


def assemble(need: Need, read: Callable[[str], Floats], context: ParallelContext) -> Floats:
    """Assemble this rank's part of a tensor from its sources."""
    parts = [_read_source(need, source, read) for source in need.sources]
    if need.matrix is None:
        whole = np.concatenate(parts)
        if need.declared.split is not None:
            rows = part_run(need.declared.split, context)
            whole = whole[rows.start : rows.stop]
        return np.ascontiguousarray(whole)
    linear, word = need.matrix
    stored = PLAIN[word]
    if len(parts) == 1:
        parts = split_parts(parts[0], linear, stored)
    mine = shard(parts, linear, stored, context)
    if word == "bias" and linear.shard == "in" and context.rank:
        return np.zeros_like(mine)  # the ranks' results are summed, so only rank 0 adds the bias
    return mine


def _read_source(need: Need, source: StoredTensor, read: Callable[[str], Floats]) -> Floats:
    """Read one source: slices stacked, rows and axes in the layer's order."""
    slices = [read(name) for name in need.names(source)]
    array = np.stack(slices) if "@" in source.name else slices[0]
    if source.transposed:
        array = np.swapaxes(array, -1, -2)
    if source.rows is not None:
        axis = 1 if isinstance(need.module, ExpertMatrices) else 0
        array = np.take(array, np.asarray(source.rows), axis)
    return array
