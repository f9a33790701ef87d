"""The rows and inputs of a stacked projection that a rank owns, cut from stored rows.

A stacked projection is a list of parts, each a run of rows. A rank owns a run of whole units
(heads) of each part, or a run of the inputs that begins and ends at the border of a group.
"""

from __future__ import annotations

from msgspec import Struct

from octavo.backends.stored_rows import StoredRows
from octavo.distributed.context import ParallelContext
from octavo.layers import Linear, Part
from octavo.loader.errors import CheckpointError


class Run(Struct, frozen=True):
    """A contiguous run of rows or inputs."""

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
            raise ShardError(
                f"{part.name} has {units} units (such as heads), and {ranks} ranks cannot share "
                "them evenly"
            )
        unit = context.rank * units // ranks
        return Run(unit * part.unit, (unit + 1) * part.unit)
    if units % ranks:
        raise ShardError(
            f"{part.name} has {units} units (such as heads), which do not divide among {ranks} "
            "ranks"
        )
    share = units // ranks * part.unit
    return Run(context.rank * share, (context.rank + 1) * share)


def row_runs(linear: Linear, context: ParallelContext) -> list[Run]:
    """Return the rows of each part that this rank owns."""
    if linear.shard != "out":
        return [Run(0, part.rows) for part in linear.parts]
    return [part_run(part, context) for part in linear.parts]


def column_run(linear: Linear, context: ParallelContext) -> Run:
    """Return the inputs that this rank owns."""
    if linear.shard != "in":
        return Run(0, linear.inputs)
    return part_run(Part("inputs", linear.inputs), context)


def cut_inputs(rows: StoredRows, run: Run, name: str) -> StoredRows:
    """Cut a rank's inputs out of the rows of the tensor `name`."""
    group = rows.layout.group
    if run.start % group or (run.stop % group and run.stop != rows.inputs):
        raise ShardError(
            f"{name}: a rank's inputs {run.start}..{run.stop} of {rows.inputs} cut a group of "
            f"{group} ({rows.type}); use fewer ranks, or a format with smaller groups"
        )
    return rows.cut_inputs(run.start, run.stop)
