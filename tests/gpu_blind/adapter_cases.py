"""Cases of kernels that add what adapters make of rows to the sums of a product."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from octavo.backends.cuda.kernels import adapter_slots, adapters
from octavo.backends.cuda.kernels.adapter_slots import AdapterRows, SlotTables
from octavo.backends.step import NO_ADAPTER
from octavo.backends.torch import adapters as meaning
from octavo.backends.torch.adapters import TorchAdapter, TorchChange, TorchPair
from octavo.program.operands import Adapters
from tests.gpu_blind.case import Case, random_rows
from tests.gpu_blind.cases import BF16, FP16, FP32
from tests.gpu_blind.homes import Home

NONE = NO_ADAPTER


class Adapted(NamedTuple):
    """A product, the ranks of its parts in each slot, and the slot of each row."""

    inputs: int = 96
    parts: tuple[int, ...] = (64, 24)
    ranks: tuple[tuple[int, ...], ...] = ((8, 8), (16, 0), (3, 5))
    slots: tuple[int, ...] = (0, 2, NONE, 1, 0, 0, NONE, 2)
    most: int = 16
    scale: float = 0.4


def adapter_case(dtype: torch.dtype, name: str, shape: Adapted | None = None) -> Case:
    """Return a case of a product behind another, whose parts come behind the other's in tables."""
    shape = shape or Adapted()
    rows, outputs = len(shape.slots), sum(shape.parts)
    x = random_rows(rows, shape.inputs + 32, seed=30, dtype=dtype)[:, 16 : 16 + shape.inputs]
    y = random_rows(rows, outputs, seed=31, dtype=dtype)
    product = _product(shape)
    slots = np.array(shape.slots, np.int32)
    made = _adapters(shape, dtype)
    changes = [
        (each.products[1], _factor(slot), torch.from_numpy(np.flatnonzero(slots == slot)))
        for slot, each in enumerate(made)
    ]
    low, expected = x.new_zeros(rows, product.width), y.clone()
    meaning.shrink(x, low, changes)
    meaning.expand(expected, None, low, changes)

    def compute(home: Home) -> Tensor:
        tables = PooledTables(product, shape, dtype, home)
        where = AdapterRows(*home.upload(adapter_slots.plan(slots)))
        found = y.clone()
        of_rows = adapters.shrink(x, product, tables, where, home)
        adapters.expand(found, of_rows, product, tables, where, home)
        return found

    tolerance = 4 * torch.finfo(dtype).eps if dtype != torch.float32 else 1e-5
    return Case(f"adapters {name} {dtype}", compute, expected, tolerance)


def _factor(slot: int) -> float:
    return 1.0 - 0.75 * slot


class Pool:
    """Memory for the matrices of adapters, each between NaN."""

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self.memory = torch.full((size,), torch.nan, dtype=dtype)
        self._end = 0

    def keep(self, matrix: Tensor) -> Tensor:
        """Return a copy of a matrix that lies here."""
        begin, count = self._end + 32, matrix.numel()
        self._end = begin + -(-count // 32) * 32
        target = self.memory[begin : begin + count].view(matrix.shape)
        target.copy_(matrix)
        return target


def _pool_size(shape: Adapted) -> int:
    """Return the numbers of a pool with room for all matrices, and 64 beside each."""
    most = shape.most + 16
    matrices = len(shape.ranks) * len(shape.parts)
    return matrices * ((shape.inputs + max(shape.parts)) * most + 128)


class PooledTables(SlotTables):
    """Tables of adapters that lie in one tensor, which is an argument of the kernels."""

    def __init__(self, product: Adapters, shape: Adapted, dtype: torch.dtype, home: Home) -> None:
        self.pool = Pool(_pool_size(shape), dtype)
        before = Adapters("before", 0, 8, (8,), shape.most)
        slots = len(shape.ranks)
        with home.working():
            super().__init__((before, product), slots, dtype, home, self.pool.memory)
            for slot, each in enumerate(_adapters(shape, dtype)):
                pairs = [
                    replace(pair, down=self.pool.keep(pair.down)) for pair in each.products[1].pairs
                ]
                self[slot] = TorchAdapter((TorchChange(), TorchChange(tuple(pairs)))), _factor(slot)

    def keep(self, matrix: Tensor) -> Tensor:
        return self.pool.keep(matrix)


def _product(shape: Adapted) -> Adapters:
    return Adapters("product", 1, shape.inputs, shape.parts, len(shape.parts) * shape.most)


def _adapters(shape: Adapted, dtype: torch.dtype) -> list[TorchAdapter]:
    """Return the adapters of slots, which change the second product alone."""
    made = []
    for slot, ranks in enumerate(shape.ranks):
        pairs, first, first_low = [], 0, 0
        for part, (rank, outputs) in enumerate(zip(ranks, shape.parts, strict=True)):
            if rank:
                seed = 40 + 10 * slot + 2 * part
                down = random_rows(rank, shape.inputs, seed=seed) * shape.inputs**-0.5
                up = random_rows(outputs, rank, seed=seed + 1)
                matrices = down.to(dtype), up.to(dtype)
                pairs.append(TorchPair(*matrices, shape.scale, first, first_low))
            first, first_low = first + outputs, first_low + rank
        made.append(TorchAdapter((TorchChange(), TorchChange(tuple(pairs)))))
    return made


def adapter_cases() -> list[Case]:
    """Return cases that take a second or so each."""
    many = Adapted(slots=(*(0,) * 19, *(1,) * 3, NONE, *(0,) * 2))
    wide = Adapted(1100, (40,), ((20,), (70,)), (1, 0, NONE), 70)
    return [
        *(adapter_case(dtype, "of parts") for dtype in (BF16, FP16, FP32)),
        adapter_case(BF16, "of many rows", many),
        adapter_case(BF16, "of many inputs and ranks", wide),
        adapter_case(BF16, "of many outputs", Adapted(parts=(300, 8), slots=(1, 0, 2))),
    ]


def alone_and_among_others(dtype: torch.dtype, home: Home) -> Sequence[Tensor]:
    """Return the sums of one row: alone, and in other places among others."""
    slots = (0, *(0,) * 20, 1, NONE, 2, 0)
    shape = Adapted(1100, (64, 24), slots=slots)
    product = _product(shape)
    tables = PooledTables(product, shape, dtype, home)
    row = random_rows(1, shape.inputs, seed=30, dtype=dtype)
    others = random_rows(len(slots), shape.inputs, seed=32, dtype=dtype)
    found = []
    for place in (None, 0, 7, len(slots) - 1):
        x, of_rows = (row, slots[:1]) if place is None else (others.clone(), slots)
        x[place or 0] = row[0]
        y = torch.ones(len(x), sum(shape.parts), dtype=dtype)
        where = AdapterRows(*home.upload(adapter_slots.plan(np.array(of_rows, np.int32))))
        low = adapters.shrink(x, product, tables, where, home)
        adapters.expand(y, low, product, tables, where, home)
        found.append(y[place or 0])
    return found
