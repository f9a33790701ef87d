"""Binds a declared model to a backend and a checkpoint: every choice is made here, once.

For each tensor a layer declares: where it is in the checkpoint (the family's `weights`), which
slice of it this rank owns (octavo.quant.compose), and what the backend makes of it. Names and
shapes are checked before anything is read, so that a wrong checkpoint costs no time.
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
    AnyOf,
    CausalLM,
    From,
    LayerNorm,
    Linear,
    Module,
    PagedAttention,
    Pieces,
    TensorDeclaration,
    Value,
)
from octavo.layers.moe import ExpertMatrices
from octavo.layers.weight_names import WeightSource
from octavo.models.checkpoint_weights import RenamedWeights, Weights
from octavo.models.config_reader import ConfigurationError
from octavo.quant.compose import ShardError, part_run, row_runs, shard, split_parts
from octavo.quant.scheme import PLAIN

Floats = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Need:
    """One tensor of one layer, and what it is made of."""

    module: Module
    tensor: str
    declared: TensorDeclaration
    sources: tuple[From, ...]  # one, or one a part, stacked along the output

    @property
    def matrix(self) -> tuple[Linear, str] | None:
        """The projection this belongs to, and which of its tensors it is; of each expert, perhaps.

        None for what is not part of any: norms, embeddings.
        """
        if isinstance(self.module, ExpertMatrices):
            return self.module.matrix(self.tensor), self.tensor.rpartition("_")[2]
        return (self.module, self.tensor) if isinstance(self.module, Linear) else None

    def names(self, source: From) -> list[str]:
        """The checkpoint's tensors that one source stands for: one, or one a piece."""
        if "@" not in source.name:
            return [source.name]
        return [source.name.replace("@", str(piece)) for piece in range(self.declared.shape[0])]

    def shapes(self) -> Iterable[tuple[int, ...]]:
        """The shape each source (or each piece of it) must have in the checkpoint."""
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
        """How many rows each source gives; None: all there are."""
        if len(self.sources) == 1 or self.matrix is None:
            return [None] * len(self.sources)
        return [part.rows for part in self.matrix[0].parts]


def bind(
    model: CausalLM, backend: Backend, weights: Weights, context: ParallelContext = ALONE
) -> None:
    """Give every layer its operations and its tensors."""
    check_ranks(model, context)
    if model.renames:
        weights = RenamedWeights(weights, model.renames)
    needs = list(find_needs(model, weights.shapes()))
    check(model, needs, weights)
    for _, module in model.walk():
        module.ops = backend.ops
    for need in needs:
        setattr(need.module, need.tensor, _value(need, backend, weights, context))
    if model.tied:
        model.head.weight = model.embed.weight


def _value(need: Need, backend: Backend, weights: Weights, context: ParallelContext) -> Value:
    """A tensor as the backend keeps it: matrices row by row as they are stored, where they can."""
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
    """Every declared tensor with its sources; optional ones that are absent are set to None."""
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
) -> Iterable[From]:
    """A layer's name and tensor, looked up: whole name first, then without its last word."""
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
                # What has one axis has nothing to transpose: the bias of a transposed weight.
                is_vector = suffix == ".bias"
                yield replace(found, transposed=False) if is_vector else found
            return
    raise ConfigurationError(f"{path}.{tensor} has no place in the checkpoint: a defect of ours")


def _expand(
    source: WeightSource, suffix: str, number: str, available: Container[str]
) -> Iterable[From]:
    match source:
        case str():
            yield From(source.replace("*", number) + suffix)
        case From():
            yield replace(source, name=source.name.replace("*", number) + suffix)
        case Pieces():
            yield from _expand(source.names, suffix, number, available)
        case AnyOf():
            ways = [list(_expand(way, suffix, number, available)) for way in source.ways]
            there = (way for way in ways if way[0].name.replace("@", "0") in available)
            yield from next(there, ways[0])
        case _:
            for part in source:
                yield from _expand(part, suffix, number, available)


# checking


def check_ranks(model: CausalLM, context: ParallelContext) -> None:
    """Refuse to split what no single rank could compute its part of."""
    for path, module in model.walk():
        if context.ranks > 1 and isinstance(module, PagedAttention) and module.norm_whole:
            raise ShardError(
                f"{path}: this model normalises all its heads together, and each of "
                f"{context.ranks} ranks would have only a part of them; use one rank"
            )


def check(model: CausalLM, needs: Sequence[Need], weights: Weights) -> None:
    """Compare what is needed with what is there, before anything is read."""
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
    """The parts of a matrix, one below the other, as they are stored; of each expert's matrix."""
    count = need.declared.shape[0] if isinstance(need.module, ExpertMatrices) else 1
    stacks = [_stored_source(need, source, count, weights) for source in need.sources]
    if need.matrix is not None and len(stacks) == 1:
        sizes = [part.rows for part in need.matrix[0].parts]
        return [_cut(rows, sizes) for rows in stacks[0]]
    return [list(parts) for parts in zip(*stacks, strict=True)]


def _stored_source(need: Need, source: From, count: int, weights: Weights) -> list[StoredRows]:
    """One source: its rows, in our order; those of each of `count` matrices."""
    pieces = []
    for name in need.names(source):
        rows = None if source.transposed else weights.stored(name)
        if rows is None:
            values = weights.read(name)
            values = np.swapaxes(values, -1, -2) if source.transposed else values
            rows = StoredRows.of(values.reshape(-1, values.shape[-1]))
        pieces.append(rows)
    if len(pieces) < count:  # they are stored as one
        pieces = _cut(pieces[0], [len(pieces[0]) // count] * count)
    if source.rows is None:
        return pieces
    order = np.asarray(source.rows, np.int64)
    return [rows.reordered(order) for rows in pieces]


def _cut(rows: StoredRows, sizes: Sequence[int]) -> list[StoredRows]:
    ends = np.cumsum(sizes).tolist()
    return [rows.cut(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _cut_floats(need: Need, array: Floats, context: ParallelContext) -> list[list[StoredRows]]:
    """The same of this rank's share, which was put together as floats."""
    matrices = array if isinstance(need.module, ExpertMatrices) else array[None]
    if need.matrix is None:
        return [[StoredRows.of(matrix)] for matrix in matrices]
    sizes = [len(run) for run in row_runs(need.matrix[0], context)]
    return [_cut(StoredRows.of(matrix), sizes) for matrix in matrices]


def assemble(need: Need, read: Callable[[str], Floats], context: ParallelContext) -> Floats:
    """This rank's part of a tensor, stacked from its sources."""
    parts = [_read_source(need, source, read) for source in need.sources]
    if need.matrix is None:
        whole = np.concatenate(parts)
        if need.declared.split is not None:
            rows = part_run(need.declared.split, context)
            whole = whole[rows.start : rows.stop]
        return np.ascontiguousarray(whole)
    linear, word = need.matrix
    stored = PLAIN.tensor(word)
    if len(parts) == 1:
        parts = split_parts(parts[0], linear, stored)
    mine = shard(parts, linear, stored, context)
    if word == "bias" and linear.shard == "in" and context.rank:
        return np.zeros_like(mine)  # the ranks' results are added up: one of them brings it
    return mine


def _read_source(need: Need, source: From, read: Callable[[str], Floats]) -> Floats:
    """One source as the layer wants it: pieces put together, rows and axes in our order."""
    pieces = [read(name) for name in need.names(source)]
    array = np.stack(pieces) if "@" in source.name else pieces[0]
    if source.transposed:
        array = np.swapaxes(array, -1, -2)
    if source.rows is not None:
        axis = 1 if isinstance(need.module, ExpertMatrices) else 0
        array = np.take(array, np.asarray(source.rows), axis)
    return array
