"""The slices of stored tensors that a rank owns, and their stacking.

A stacked projection is a list of parts, each a run of logical rows. A rank owns a run of whole
units (heads) of each part, or a run of the columns. In the stored tensor this is the same run
divided by the axis' divisor; a run that does not divide is refused with its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.distributed.context import ParallelContext
from octavo.layers import Linear, Part
from octavo.loader.errors import CheckpointError
from octavo.quant.scheme import TensorDecl

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A contiguous run of logical indices."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class ShardError(CheckpointError):
    """A matrix that cannot be divided among the ranks."""


def part_run(part: Part, context: ParallelContext) -> Run:
    """Return the rows of a part that this rank owns, counted within the part."""
    units, ranks = part.rows // part.unit, context.ranks
    if part.replicable and ranks > units:
        if ranks % units:
            raise ShardError(f"{part.name}: {ranks} ranks cannot share {units} units evenly")
        unit = context.rank * units // ranks
        return Run(unit * part.unit, (unit + 1) * part.unit)
    if units % ranks:
        raise ShardError(f"{part.name}: {units} units do not divide among {ranks} ranks")
    share = units // ranks * part.unit
    return Run(context.rank * share, (context.rank + 1) * share)


def row_runs(linear: Linear, context: ParallelContext) -> list[Run]:
    """Return the rows of each part that this rank owns."""
    if linear.shard != "out":
        return [Run(0, part.rows) for part in linear.parts]
    return [part_run(part, context) for part in linear.parts]


def column_run(linear: Linear, context: ParallelContext) -> Run:
    """Return the columns that this rank owns."""
    if linear.shard != "in":
        return Run(0, linear.inputs)
    return part_run(Part("inputs", linear.inputs), context)


def stored_slices(tensor: TensorDecl, rows: Run, columns: Run) -> tuple[slice, ...]:
    """Return the slice of a stored tensor that holds these logical rows and columns."""
    slices = []
    for axis in tensor.axes:
        run = rows if axis.logical == "out" else columns
        if run.start % axis.divisor or run.stop % axis.divisor:
            raise ShardError(
                f"{tensor.name}: {axis.logical} {run.start}..{run.stop} cuts a group of "
                f"{axis.divisor}; use fewer ranks or smaller groups"
            )
        slices.append(slice(run.start // axis.divisor, run.stop // axis.divisor))
    return tuple(slices)


def _cut(stored: Array, tensor: TensorDecl, rows: Run, columns: Run) -> Array:
    index: tuple[Any, ...] = (..., *stored_slices(tensor, rows, columns))
    cut: Array = stored[index]
    return cut


def split_parts(stacked: Array, linear: Linear, tensor: TensorDecl) -> list[Array]:
    """Cut a stored tensor that holds all parts of a projection into its parts."""
    columns, parts, at = Run(0, linear.inputs), [], 0
    for part in linear.parts:
        rows = Run(at, at + part.rows)
        parts.append(_cut(stacked, tensor, rows, columns))
        at = rows.stop
    return parts


def shard(
    parts: Sequence[Array], linear: Linear, tensor: TensorDecl, context: ParallelContext
) -> Array:
    """Stack this rank's stored tensor from the stored tensor of each part.

    Axes before the declared ones (of experts) are kept. A tensor without rows, such as an order
    of the columns, must be the same in all parts.
    """
    columns = column_run(linear, context)
    pieces = [
        _cut(part, tensor, rows, columns)
        for part, rows in zip(parts, row_runs(linear, context), strict=True)
    ]
    logical = [axis.logical for axis in tensor.axes]
    if "out" not in logical:
        if not all(np.array_equal(pieces[0], piece) for piece in pieces):
            raise ShardError(f"{tensor.name}: the parts differ, but they must share one tensor")
        return np.ascontiguousarray(pieces[0])
    joined = np.concatenate(pieces, axis=logical.index("out") - len(logical))
    return np.ascontiguousarray(joined)
