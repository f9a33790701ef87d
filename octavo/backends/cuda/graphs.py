"""Decode steps as graphs: captured when a number of rows first needs one, replayed from then on.

A graph is for a number of rows that is a multiple of a product's tile, which computes as many in
any case. All that differs between two steps lies in memory that the step writes to before: tokens,
positions, tables and draws. Rows beyond those of the step have no cell and draw nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo.backends.base import Doubles, Ints, Longs, StepSize
from octavo.backends.cuda.accelerator import Accelerator, Graph
from octavo.backends.cuda.filters import Filters, HostFilters
from octavo.backends.cuda.graph_batch import GraphBatch, Inputs
from octavo.backends.step import NO_ADAPTER, NO_ROWS, Draws, HostBatch
from octavo.backends.torch.attention import Buffers
from octavo.backends.torch.interpreter import Interpreter, Outputs
from octavo.backends.torch.ops import tile_rows

if TYPE_CHECKING:
    from octavo.backends.cuda.exchange import DeviceCommunicator
    from octavo.backends.cuda.sampler import DeviceSampler

log = logging.getLogger(__name__)

_ROW_DOUBLES, _ROW_INTS = 5, 3  # of a row's draws, token and position
_ROW_BYTES = 8 * _ROW_DOUBLES + 4 * _ROW_INTS
_RING = 4  # pinned buffers: one more than steps that may be in flight


class _Pinned(NamedTuple):
    """The same fields but the tables, as the host writes them."""

    buffer: Tensor
    temperatures: Doubles
    keys: Longs
    token_ids: Ints
    positions: Ints
    filters: HostFilters


class DecodeGraphs:
    """The graphs of a program over one cache."""

    def __init__(
        self,
        home: Accelerator,
        interpreter: Interpreter,
        buffers: Buffers,
        sampler: DeviceSampler,
        size: StepSize,
        batches: type[GraphBatch],
        communicator: DeviceCommunicator | None = None,
    ) -> None:
        self._communicator = communicator  # if several ranks share the model
        self._home, self._interpreter, self._buffers = home, interpreter, buffers
        self._sampler, self._batches = sampler, batches
        self._unit = tile_rows(home.device)
        self._most_rows = size.sequences
        rows = -(-size.sequences // self._unit) * self._unit
        self._most_positions = size.positions
        self._most_chunks = batches.most_chunks(interpreter.instructions)
        widths = [-(-size.positions // buffers.block_size)] * len(buffers.layers)
        with home.working():
            self._static = torch.zeros(rows * _ROW_BYTES, dtype=torch.uint8, device=home.device)
            tables = [
                torch.zeros(rows, width, dtype=torch.int32, device=home.device) for width in widths
            ]
            self.inputs = Inputs(*_fields(self._static, rows), tables)
            self.logits = torch.zeros(rows, size.vocabulary, device=home.device)
            self.tokens = torch.zeros(rows, dtype=torch.int64, device=home.device)
        self._ring = [_pinned(home.pinned(rows * _ROW_BYTES), rows) for _ in range(_RING)]
        self._turn = 0
        self._tables: list[Ints] = [NO_ROWS.reshape(0, 0)] * len(widths)  # as the device has them
        self._graphs: dict[int, Graph] = {}
        self._is_refused = False  # the card has refused a graph while serving

    @property
    def captured(self) -> dict[int, Graph]:
        """The graphs by their number of rows."""
        return self._graphs

    def takes(self, batch: HostBatch, draws: Draws) -> bool:
        """Return whether a step only draws a token for each of its sequences, which fit."""
        rows = len(batch.token_ids)
        if not 0 < rows == len(batch.slots) == len(batch.logits_rows) <= self._most_rows:
            return False
        if len(batch.hidden_rows) or len(batch.types) or len(batch.echoes):
            return False
        if draws.num_drafts is not None or draws.prompts or draws.pools or draws.ahead is not None:
            return False
        if len(batch.adapters) and batch.adapters.max() != NO_ADAPTER:
            return False
        if int(batch.positions.max()) >= self._most_positions:
            return False
        return self._batches.num_chunks(batch.positions) <= self._most_chunks

    def run(
        self,
        batch: HostBatch,
        temperatures: Sequence[float] | Doubles,
        keys: Longs,
        filters: HostFilters | None = None,
        *,
        continues: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Submit a step; return the logits of its rows, and the tokens that were drawn.

        Both are valid until the next step. A row without a temperature draws nothing. Where it
        continues the last step, its tokens are those that were drawn then, whatever the host knows.
        """
        count = len(batch.token_ids)
        rows = -(-count // self._unit) * self._unit
        pinned, self._turn = self._ring[self._turn], (self._turn + 1) % _RING
        if not continues:
            pinned.token_ids[:count] = batch.token_ids
        pinned.positions[:count] = batch.positions
        pinned.positions[count:rows] = -1
        pinned.temperatures[:rows] = -1.0
        pinned.temperatures[: len(temperatures)] = temperatures
        pinned.keys[: len(keys)] = keys
        if filters is not None:
            drawn = len(filters.counts)
            pinned.filters.floors[:drawn] = filters.floors
            pinned.filters.shares[:drawn] = filters.shares
            pinned.filters.counts[:drawn] = filters.counts
        self._static.copy_(pinned.buffer, non_blocking=True)
        if continues:
            self.inputs.token_ids[:count].copy_(self.tokens[:count])
        self._write_tables(batch)
        if rows not in self._graphs and not self._is_refused:
            self._capture_late(rows)
        if rows in self._graphs:
            self._graphs[rows].replay()
        else:
            self._compute(rows)
        return self.logits[:count], self.tokens[:count]

    def _write_tables(self, batch: HostBatch) -> None:
        """Copy the tables that differ from the device's, as far as they are read."""
        width = int(batch.positions.max()) // self._buffers.block_size + 1
        for group, table in enumerate(batch.tables):
            part = table[:, :width]
            if not np.array_equal(part, self._tables[group]):
                (copied,) = self._home.upload([part])
                self.inputs.tables[group][: len(part), :width].copy_(copied)
                self._tables[group] = part.copy()

    def capture_first(self) -> None:
        """Make the graph of most rows, in whose memory all others fit; with ranks, make all.

        If the card of one rank refused a graph later, that rank would do the work of its step, and
        so its exchanges, less often than the others.
        """
        most = len(self.inputs.positions)
        least = most if self._communicator is None else self._unit
        with self._home.working():
            self.inputs.positions.fill_(-1)
            self.inputs.temperatures.fill_(-1.0)
            for rows in range(most, least - 1, -self._unit):
                self.capture(rows)

    def _capture_late(self, rows: int) -> None:
        """Make a graph that a step needs; if the card refuses, no further one is tried.

        The steps of so many rows are then submitted one operation after the other, with their bits.
        """
        try:
            self.capture(rows)
        except RuntimeError as error:
            self._is_refused = True
            log.warning(
                "decode steps of %d rows cannot be captured as a graph on %s: %s; they go on "
                "without one, and take the host more time",
                *(rows, self._home.name, error),
            )

    def capture(self, rows: int) -> None:
        """Make the graph of so many rows, whose work is also done once before."""
        self._compute(rows)
        largest = next(iter(self._graphs.values()), None)
        self._graphs[rows], _ = self._home.capture(lambda: self._compute(rows), largest)

    def _compute(self, rows: int) -> None:
        """Compute a step of so many rows from the inputs, and draw."""
        few = self.inputs.first(rows)
        outputs: Outputs = self._interpreter.run(self._batches.over(few, self._buffers))
        logits = self.logits[:rows]
        logits.copy_(outputs.logits)
        drawn = self._sampler.best_of_rows(logits, few.temperatures, few.keys, few.filters)
        if self._communicator is not None:  # the first rank alone has temperatures and keys
            drawn = self._communicator.of_first(drawn)
        self.tokens[:rows].copy_(drawn)


def _fields(buffer: Tensor, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Filters]:
    """Return the parts of a buffer, the widest numbers first, so that all are aligned."""
    end = 8 * _ROW_DOUBLES * rows
    temperatures, floors, shares, *_ = buffer[:end].view(torch.float64).view(_ROW_DOUBLES, rows)
    keys = buffer[24 * rows : end].view(torch.int64).view(rows, 2)
    token_ids, positions, counts = buffer[end:].view(torch.int32).view(_ROW_INTS, rows)
    return temperatures, keys, token_ids, positions, Filters(floors, shares, counts)


def _pinned(buffer: Tensor, rows: int) -> _Pinned:
    content = buffer.numpy()
    content.fill(0)  # rows that are none have some token, and keys that nothing uses
    end = 8 * _ROW_DOUBLES * rows
    temperatures, floors, shares, *_ = content[:end].view(np.float64).reshape(_ROW_DOUBLES, rows)
    keys = content[24 * rows : end].view(np.int64).reshape(rows, 2)
    token_ids, positions, counts = content[end:].view(np.int32).reshape(_ROW_INTS, rows)
    filters = HostFilters(floors, shares, counts)
    return _Pinned(buffer, temperatures, keys, token_ids, positions, filters)
