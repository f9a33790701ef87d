"""One run of a listing: the batch of the step, and the values that are still to be read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from octavo.backends.base import Ints, Longs
from octavo.backends.step import NO_ADAPTER
from octavo.backends.torch import experts, ops
from octavo.backends.torch.adapters import Changed, TorchAdapter
from octavo.backends.torch.attention import TorchBatch
from octavo.distributed.communicator import Communicator
from octavo.layers import Rope
from octavo.program.listing import Buffer, Instruction, Prepared, Space, Value


@dataclass(slots=True)
class Run:
    """One step: its batch, and the values that are still to be read."""

    batch: TorchBatch
    communicator: Communicator[Any] | None = None  # if several ranks share the model
    contents: dict[Buffer | Prepared, Any] = field(default_factory=dict)
    turns: dict[tuple[Rope, torch.dtype], tuple[Tensor, Tensor]] = field(default_factory=dict)
    pairs: list[experts.Chosen] = field(default_factory=list)  # SortPairs writes both
    pair_weights: Tensor | None = None
    wanted: Tensor | None = None
    adapted: dict[Space, dict[int, Tensor]] = field(default_factory=dict)
    by_kernels: dict[Space, Any] = field(default_factory=dict)  # rows whose adapters kernels add

    def __getitem__(self, value: Value | None) -> Tensor:
        assert value is not None
        tensor: Tensor = self.contents[value.buffer]
        if value.width == value.buffer.width:
            return tensor
        return tensor[:, value.first : value.first + value.width]

    def __setitem__(self, value: Value | None, tensor: Tensor) -> None:
        assert value is not None
        assert value.is_whole
        self.contents[value.buffer] = tensor

    @property
    def others(self) -> Communicator[Any]:
        assert self.communicator is not None, "a listing with collectives needs a communicator"
        return self.communicator

    def rotate(self, x: Tensor, rope: Rope, head_dim: int) -> Tensor:
        """Rotate x by the tokens' positions; all layers with one rotation share its tables."""
        return ops.rotate(x, self.tables(rope, x.dtype), rope, head_dim)

    def tables(self, rope: Rope, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines of the tokens' positions."""
        if (rope, dtype) not in self.turns:
            positions, home = self.batch.positions, self.batch.buffers.home
            self.turns[rope, dtype] = ops.rope_tables(positions, rope, dtype, home)
        return self.turns[rope, dtype]

    def rows(self, space: Space) -> Tensor:
        """Return the rows of all tokens that a space consists of."""
        if space == "Logits":
            return self.batch.logits_rows
        if space == "Hidden":
            return self.batch.hidden_rows
        if space == "Tokens":
            return torch.arange(len(self.batch.positions), device=self.batch.device)
        assert space == "Wanted"
        if self.wanted is None:
            (self.wanted,) = self.batch.buffers.home.upload([self._host_rows(space)])
        return self.wanted

    def changes(
        self, i: Instruction, leaves_out: Callable[[int], bool] = lambda slot: False
    ) -> Changed:
        """Yield what adapters do to a product, its slot's factor, and the rows."""
        assert i.out is not None
        assert i.adapters is not None
        for slot, rows in self._adapted_rows(i.out.buffer.space).items():
            adapter, factor = self.adapter_in(slot)
            if not leaves_out(slot):
                yield adapter.products[i.adapters.number], factor, rows

    def adapter_in(self, slot: int) -> tuple[TorchAdapter, float]:
        """Return the adapter of a slot that rows have, and its factor."""
        if slot not in self.batch.adapter_slots:
            raise ValueError(f"rows have the adapter of slot {slot}, in which there is none")
        return self.batch.adapter_slots[slot]

    def adapters_of(self, space: Space) -> Ints:
        """Return the slots of the rows of a space; nothing if no row has an adapter."""
        slots = self.batch.host.adapters
        return slots if not len(slots) else slots[self._host_rows(space)]

    def _adapted_rows(self, space: Space) -> dict[int, Tensor]:
        """Return the rows of a space that have each slot's adapter, by the slot."""
        if not len(self.batch.host.adapters):
            return {}
        if space not in self.adapted:
            slots = self.adapters_of(space)
            used = sorted({*slots.tolist()} - {NO_ADAPTER})
            rows = self.batch.buffers.home.upload([np.flatnonzero(slots == s) for s in used])
            self.adapted[space] = dict(zip(used, rows, strict=True))
        return self.adapted[space]

    def _host_rows(self, space: Space) -> Longs:
        """Return the rows that a space consists of, as the host has them."""
        host = self.batch.host
        if space == "Tokens":
            return np.arange(len(host.positions))
        if space == "Wanted":
            return np.unique(np.concatenate((host.logits_rows, host.hidden_rows))).astype(np.int64)
        return (host.logits_rows if space == "Logits" else host.hidden_rows).astype(np.int64)
