"""The share of one rank in a layer's tensors: matrices as stored rows, other tensors as values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from octavo.backends.stored_rows import Floats, Order, StoredRows
from octavo.distributed.context import ParallelContext
from octavo.layers import HeadLinear, HeadRows, Linear, MatrixStack
from octavo.models.needs import Need, Source
from octavo.models.weights import Weights
from octavo.quant.shard import ShardError, column_run, cut_inputs, part_run, row_runs


class RankMatrices(NamedTuple):
    """The matrices of one layer as a rank has them, each given by its parts."""

    matrices: list[list[StoredRows]]
    # The inputs, of all ranks', that the matrix reads; None: those of the rank itself.
    columns: Order | None = None


def read_matrices(need: Need, weights: Weights, context: ParallelContext) -> RankMatrices:
    """Read a rank's share of a weight as stored rows; of an expert layer, of each matrix."""
    matrices = stored_matrices(need, weights)
    if context.ranks == 1:
        return RankMatrices(matrices)
    if need.matrix is None:
        if need.declared.split is None:
            return RankMatrices(matrices)
        run = part_run(need.declared.split, context)
        return RankMatrices([[rows.cut(run.start, run.stop) for rows in matrices[0]]])
    linear, _ = need.matrix
    if isinstance(need.module, HeadLinear):
        assert need.declared.split is not None
        run = part_run(need.declared.split, context)
        return RankMatrices(matrices[run.start : run.stop])
    if linear.shard == "in":
        return _cut_inputs(need, linear, matrices, context)
    runs = row_runs(linear, context)
    return RankMatrices(
        [
            [rows.cut(run.start, run.stop) for rows, run in zip(parts, runs, strict=True)]
            for parts in matrices
        ]
    )


def _cut_inputs(
    need: Need, linear: Linear, matrices: list[list[StoredRows]], context: ParallelContext
) -> RankMatrices:
    name, run = need.sources[0].name, column_run(linear, context)
    cut = [[cut_inputs(rows, run, name) for rows in parts] for parts in matrices]
    columns = [rows.inputs_in(run.start, run.stop) for parts in matrices for rows in parts]
    if all(order is None for order in columns):
        return RankMatrices(cut)
    if len(columns) > 1:
        raise ShardError(
            f"{name}: {len(columns)} matrices keep their inputs in orders of their own, but "
            f"{context.ranks} ranks exchange inputs for one matrix at a time; use one rank"
        )
    return RankMatrices(cut, columns[0])


def stored_matrices(need: Need, weights: Weights) -> list[list[StoredRows]]:
    """Return the stored parts of a matrix, one below the other; of a stack, of each matrix."""
    count = need.declared.shape[0] if isinstance(need.module, MatrixStack) else 1
    stacks = [_stored_source(need, source, count, weights) for source in need.sources]
    if need.matrix is not None and len(stacks) == 1:
        sizes = [part.rows for part in need.matrix[0].parts]
        return [_cut(rows, sizes) for rows in stacks[0]]
    return [list(parts) for parts in zip(*stacks, strict=True)]


def _stored_source(need: Need, source: Source, count: int, weights: Weights) -> list[StoredRows]:
    """Return the rows of one source, in the layer's order, for each of `count` matrices."""
    if isinstance(source, HeadRows):
        rows, size = weights.rows(source.name), source.per_head
        runs = [rows.cut(at + source.first, at + source.stop) for at in range(0, len(rows), size)]
        return [run.transposed() for run in runs] if source.transposed else runs
    slices = []
    for name in need.names(source):
        rows = weights.rows(name)
        if source.transposed:
            values = rows.floats().reshape(weights.shapes()[name])
            rows = StoredRows.of(values.swapaxes(-1, -2).reshape(-1, values.shape[-2]))
        slices.append(rows)
    if source.skipped:
        slices = [rows.cut(source.skipped, len(rows)) for rows in slices]
    if len(slices) < count:  # all matrices are stored as one tensor
        slices = _cut(slices[0], [len(slices[0]) // count] * count)
    if source.rows is None:
        return slices
    order = np.asarray(source.rows, np.int64)
    return [rows.reordered(order) for rows in slices]


def _cut(rows: StoredRows, sizes: Sequence[int]) -> list[StoredRows]:
    ends = np.cumsum(sizes).tolist()
    return [rows.cut(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def read_values(need: Need, weights: Weights, context: ParallelContext) -> Floats:
    """Read a rank's share of a tensor that is no matrix: a norm's weights, a bias."""
    parts = [
        _read_source(need, source, shape, weights)
        for source, shape in zip(need.sources, need.shapes(), strict=True)
    ]
    if need.matrix is None:
        whole = np.concatenate(parts)
        if need.declared.split is None:
            return whole
        run = part_run(need.declared.split, context)
        return np.take(whole, range(run.start, run.stop), need.declared.axis)
    linear, _ = need.matrix
    if len(parts) == 1:
        ends = np.cumsum([part.rows for part in linear.parts])
        parts = np.split(parts[0], ends[:-1], axis=-1)
    runs = row_runs(linear, context)
    mine = [part[..., run.start : run.stop] for part, run in zip(parts, runs, strict=True)]
    bias = np.concatenate(mine, axis=-1)
    if linear.shard == "in" and context.rank:
        return np.zeros_like(bias)  # the ranks' results are summed, so only rank 0 adds the bias
    return bias


def _read_source(need: Need, source: Source, shape: tuple[int, ...], weights: Weights) -> Floats:
    """Read one source: slices stacked, rows in the layer's order."""
    assert not isinstance(source, HeadRows), "runs of heads' rows are matrices"
    slices = [weights.rows(name).floats().reshape(shape) for name in need.names(source)]
    array = np.stack(slices) if "@" in source.name else slices[0]
    if source.rows is not None:
        axis = 1 if isinstance(need.module, MatrixStack) else 0
        array = np.take(array, np.asarray(source.rows), axis)
    return array
