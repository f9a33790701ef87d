"""Sharding × storage × stacking: which slice of which stored tensor goes where on this rank.

A stacked projection is a list of parts, each a run of logical rows. A rank owns a run of whole
units (heads) of each part, or a run of the columns. What is stored of it is the same run divided
by the axis' divisor; a run that does not divide is refused with its numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.distributed.context import ParallelContext
from octavo.layers.linear import Linear, Part
from octavo.loader.errors import CheckpointError
from octavo.quant.scheme import TensorDecl


@dataclass(frozen=True, slots=True)
class Run:
    """A run of logical indices."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


class ShardError(CheckpointError):
    """A matrix that does not divide among the ranks."""


def part_run(part: Part, context: ParallelContext) -> Run:
    """The rows of a part that this rank owns, counted within the part."""
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
    """For each part, the rows this rank owns."""
    if linear.shard != "out":
        return [Run(0, part.rows) for part in linear.parts]
    return [part_run(part, context) for part in linear.parts]


def column_run(linear: Linear, context: ParallelContext) -> Run:
    """The columns this rank owns."""
    if linear.shard != "in":
        return Run(0, linear.inputs)
    return part_run(Part("inputs", linear.inputs), context)


def stored_slices(tensor: TensorDecl, rows: Run, columns: Run) -> tuple[slice, ...]:
    """The slice of a stored tensor that holds these logical rows and columns."""
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


def offsets(runs: Sequence[Run]) -> list[int]:
    """Where each part's rows begin in this rank's stacked matrix."""
    starts, at = [], 0
    for run in runs:
        starts.append(at)
        at += len(run)
    return starts
