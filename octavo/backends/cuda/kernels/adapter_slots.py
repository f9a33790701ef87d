"""Adapters in their slots, with tables on the device by which kernels find their matrices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from octavo.backends.base import Ints
from octavo.backends.cuda.accelerator import Accelerator
from octavo.backends.cuda.providers import select_adapter
from octavo.backends.step import NO_ADAPTER
from octavo.backends.torch.adapters import TorchAdapter, TorchChange, TorchPair
from octavo.program.operands import Adapters

TILE = 16  # rows of a program, the least that tensor cores multiply
_UNIT = 16  # ranks are filled up to a multiple of it, so that rows of second matrices are aligned


class AdapterRows(NamedTuple):
    """The rows of a step that have adapters, by slot, as the device has them."""

    items: Tensor  # [items, 3]: a slot, the first of its rows in the order, how many there are
    order: Tensor


def plan(slots: Ints) -> tuple[Ints, Ints]:
    """Return the items of kernels, and the rows that have adapters, ordered by their slots."""
    order = np.argsort(slots, kind="stable").astype(np.int32)
    order = order[slots[order] != NO_ADAPTER]
    found = np.unique(slots[order], return_index=True, return_counts=True)
    items = [
        (slot, first + start, min(TILE, count - start))
        for slot, first, count in zip(*(each.tolist() for each in found), strict=True)
        for start in range(0, count, TILE)
    ]
    return np.array(items, np.int32).reshape(-1, 3), order


class SlotTables(dict[int, tuple[TorchAdapter, float]]):
    """The adapters in their slots with their factors, and what kernels read of the plain ones."""

    def __init__(
        self,
        products: Sequence[Adapters],
        slots: int,
        dtype: torch.dtype,
        home: Accelerator,
        base: Tensor | None = None,
    ) -> None:
        """Make tables for empty slots; addresses are counted from the base."""
        super().__init__()
        self._products, self._home = products, home
        counts = [0 if each.is_lookup else len(each.parts) for each in products]
        self._firsts = np.cumsum([0, *counts]).tolist()
        self.parts = self._firsts[-1]  # of all products
        ranks = [each.width // len(each.parts) for each in products]
        self.most = -(-max(ranks, default=1) // _UNIT) * _UNIT
        # By slot, of the adapters that kernels add: what addresses point to.
        self._kept: dict[int, list[Tensor]] = {}
        with home.working():
            place, shape = home.device, (slots, self.parts)
            self.base = torch.zeros(8, dtype=dtype, device=place) if base is None else base
            self.addresses = torch.zeros(*shape, 2, dtype=torch.int64, device=place)
            self.ranks = torch.zeros(shape, dtype=torch.int32, device=place)
            self.factors = torch.zeros(shape, device=place)

    def first_of(self, product: Adapters) -> int:
        """Return the number of a product's first part among those of all products."""
        return int(self._firsts[product.number])

    def __setitem__(self, slot: int, found: tuple[TorchAdapter, float]) -> None:
        """Put an adapter into a slot; what kernels have submitted before read the one before."""
        super().__setitem__(slot, found)
        adapter, factor = found
        addresses = np.zeros((self.parts, 2), np.int64)
        ranks, factors = np.zeros(self.parts, np.int32), np.zeros(self.parts, np.float32)
        self._kept.pop(slot, None)
        if select_adapter(adapter).is_kernel:
            self._kept[slot] = []
            for place, pair in self._pairs(adapter):
                matrices = pair.down, self.keep(_filled(pair.up))
                self._kept[slot] += matrices
                addresses[place] = [self._distance(each) for each in matrices]
                ranks[place], factors[place] = len(pair.down), pair.scale * factor
        copied = self._home.upload([addresses, ranks, factors])
        for table, each in zip((self.addresses, self.ranks, self.factors), copied, strict=True):
            table[slot].copy_(each)

    def __delitem__(self, slot: int) -> None:
        """Remove the adapter of a slot, which no row may have then."""
        super().__delitem__(slot)
        self._kept.pop(slot, None)

    def is_plain(self, slot: int) -> bool:
        """Return whether kernels add all that the adapter of a slot does."""
        return slot in self._kept

    def keep(self, matrix: Tensor) -> Tensor:
        """Return a second matrix where it stays while its adapter is in a slot."""
        return matrix

    def _pairs(self, adapter: TorchAdapter) -> Iterator[tuple[int, TorchPair]]:
        """Yield the pairs of products, with the number of their part among those of all."""
        for product, change in zip(self._products, adapter.products, strict=True):
            if not product.is_lookup:
                yield from _of_parts(self.first_of(product), product, change)

    def _distance(self, matrix: Tensor) -> int:
        """Return how many numbers lie between the base and a matrix, in the device's memory."""
        address = self._home.address
        numbers, left = divmod(address(matrix) - address(self.base), matrix.element_size())
        assert not left
        assert not numbers % 8, "loads have 16 bytes, at addresses that are multiples of them"
        return numbers


def _of_parts(
    first: int, product: Adapters, change: TorchChange
) -> Iterator[tuple[int, TorchPair]]:
    begins = np.cumsum([0, *product.parts]).tolist()
    for pair in change.pairs:
        yield first + begins.index(pair.first), pair


def _filled(up: Tensor) -> Tensor:
    """Return a second matrix whose rows are filled up with zeros."""
    missing = -up.shape[1] % _UNIT
    return functional.pad(up, (0, missing)) if missing else up
