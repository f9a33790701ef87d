"""The batch of a step that is captured, whose host has nothing that may differ between steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from octavo.backends.base import Ints
from octavo.backends.cuda.batch import DeviceBatch
from octavo.backends.cuda.filters import Filters
from octavo.backends.cuda.providers import Facts, select
from octavo.backends.step import NO_ROWS
from octavo.backends.torch.attention import Buffers
from octavo.program.listing import Instruction, Op

# Operations on rows of their own, beside attention by kernels. The others ask the host for
# positions or rows of their step, or write where rows that are none have no place: -1 is the last.
_CAPTURED: frozenset[Op] = frozenset(
    (
        *("Embed", "Select", "Norm", "Gemm", "HeadGemm", "Rope", "Attention", "Activate", "Gate"),
        *("Add", "Multiply", "Scale", "SoftCap", "Route", "Experts", "Shrink", "WholeGemm"),
        *("AddNorm", "Prepare", "AllReduce", "AllGather"),
    )
)


class FrozenError(AssertionError):
    """A number of the host that a graph would keep for all later steps."""


class NoHost:
    """The host's side of a batch that is captured, which has nothing that differs between steps."""

    adapters = NO_ROWS

    def __getattr__(self, name: str) -> Any:
        raise FrozenError(f"{name} of a step is read while a graph is captured")


class Inputs(NamedTuple):
    """The memory on the device that a step writes to before its graph is replayed."""

    temperatures: Tensor  # [rows]; below 0: the row is not drawn from
    keys: Tensor  # [rows, 2]: of the noise
    token_ids: Tensor  # [rows]
    positions: Tensor  # [rows]; below 0: the row is none
    filters: Filters
    tables: list[Tensor]  # for each KV group [rows, blocks]

    def first(self, rows: int) -> Inputs:
        """Return the inputs of the first rows."""
        temperatures, keys, token_ids, positions = (each[:rows] for each in self[:4])
        few, tables = self.filters.of(slice(rows)), [each[:rows] for each in self.tables]
        return Inputs(temperatures, keys, token_ids, positions, few, tables)


def operation_refusal(instructions: Sequence[Instruction]) -> str | None:
    """Return why operations apart from attention cannot be captured; None if they can."""
    found = next((each.op for each in instructions if each.op not in _CAPTURED), None)
    return None if found is None else f"{found} depends on the rows of each step"


def refusal(instructions: Sequence[Instruction], facts: Facts) -> str | None:
    """Return why a program's steps cannot be captured; None if they can."""
    for each in instructions:
        if each.op == "Attention" and not (choice := select("Attention", facts, each)).is_kernel:
            by = "attention by torch's operations depends on the positions of each step"
            return f"{by} ({choice.reason})"
    return operation_refusal(instructions)


class GraphBatch(DeviceBatch):
    """A batch of one row for each sequence, made of the inputs of a graph by the device itself."""

    no_cell = -1  # the block of a row that is none; kernels write nothing there

    @classmethod
    def over(cls, inputs: Inputs, buffers: Buffers) -> GraphBatch:
        """Submit what makes a batch of the inputs."""
        at = inputs.positions.long()
        rows, positions = len(at), at.clamp(min=0)
        every = torch.arange(rows, device=at.device)
        number, inside = positions // buffers.block_size, positions % buffers.block_size
        cells = []
        for table in inputs.tables:
            block = table.gather(1, number[:, None])[:, 0].long()
            cells.append((torch.where(at < 0, cls.no_cell, block), inside))
        made = cls(
            host=NoHost(),  # type: ignore[arg-type]
            token_ids=inputs.token_ids.long().clamp(min=0),  # a row that failed has no token
            positions=positions,
            logits_rows=every,
            hidden_rows=every[:0],
            buffers=buffers,
            item_rows=every[:, None],
            item_positions=positions[:, None],
            item_tables=inputs.tables,
            row_cells=cells,
            row_places=every,
            ends=positions,
            types=torch.zeros_like(every),
            bounds=(),  # type: ignore[arg-type]
        )
        made.marks = at
        made.prepare(at)
        return made

    def prepare(self, at: Tensor) -> None:
        """Make what attention reads; rows that are none are at -1."""
        from octavo.backends.cuda.kernels.paged import GraphWork

        self.paged = GraphWork(self.home, at, self.item_tables, self.buffers.block_size)

    @staticmethod
    def most_chunks(instructions: Sequence[Instruction]) -> int:
        """Return the most chunks that a step of a graph may have, which bounds its memory."""
        from octavo.backends.cuda.kernels.paged import most_chunks

        return min(most_chunks(i.attend) for i in instructions if i.attend is not None)

    @staticmethod
    def num_chunks(positions: Ints) -> int:
        """Return how many chunks rows at these positions have at most."""
        from octavo.backends.cuda.kernels.attention import CHUNK

        return int((positions // CHUNK).sum()) + len(positions)
