"""The memory of a launch: that of its arguments, and what the threads of a block share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]


class BoundsError(AssertionError):
    """An access outside of all arguments, or at an address that it may not have."""


class SharedRaceError(AssertionError):
    """A byte that two warps touch between two barriers, one of them by writing something new."""


class GlobalMemory:
    """The memory of all arguments that are tensors."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._spans: dict[int, Bytes] = {}
        for each in tensors:
            # The whole of what a view looks into: a launch is given addresses, not shapes.
            storage = each.untyped_storage()
            content = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            self._spans[storage.data_ptr()] = content

    def load(self, addresses: Longs, size: int) -> Bytes:
        """Return the bytes [threads, size] at these addresses."""
        found = np.zeros((len(addresses), size), np.uint8)
        for content, here, offsets in self._parts(addresses, size, "load"):
            found[here] = content[offsets[:, None] + np.arange(size)]
        return found

    def store(self, addresses: Longs, values: Bytes) -> None:
        """Write bytes [threads, size] to these addresses."""
        size = values.shape[1]
        for content, here, offsets in self._parts(addresses, size, "store"):
            content[offsets[:, None] + np.arange(size)] = values[here]

    def _parts(self, addresses: Longs, size: int, what: str) -> list[tuple[Bytes, Any, Longs]]:
        if len(addresses) and (addresses % size).any():
            raise BoundsError(f"a {what} of {size} bytes at an address that is no multiple of it")
        left, parts = np.ones(len(addresses), bool), []
        for begin, content in self._spans.items():
            offsets = addresses - begin
            here = left & (offsets >= 0) & (offsets + size <= len(content))
            if here.any():
                left &= ~here
                parts.append((content, here, offsets[here]))
        if left.any():
            raise BoundsError(f"a {what} outside of every argument, at {addresses[left][0]:#x}")
        return parts


_MANY = -1  # warps


class SharedMemory:
    """The shared memory of a block, full of NaN at first, with who touched it since a barrier.

    Two warps may store the same: layouts repeat.
    """

    def __init__(self, size: int) -> None:
        self._bytes = np.full(size, 0xFF, np.uint8)
        self._stored = np.zeros(size, np.int16)  # by which warp, from 1
        self._loaded = np.zeros(size, np.int16)

    def barrier(self) -> None:
        """Forget who touched what: all threads have come this far."""
        self._stored[:], self._loaded[:] = 0, 0

    def load(self, addresses: Longs, size: int, threads: Longs) -> Bytes:
        """Return the bytes [threads, size] at these addresses."""
        places = self._places(addresses, size)
        warps = np.repeat(threads // 32 + 1, size).astype(np.int16)
        flat = places.ravel()
        self._refuse((self._stored[flat] != 0) & (self._stored[flat] != warps), flat)
        before = self._loaded[flat]
        self._loaded[flat] = np.where((before != 0) & (before != warps), _MANY, warps)
        return self._bytes[places]

    def store(self, addresses: Longs, values: Bytes, threads: Longs) -> None:
        """Write bytes [threads, size] to these addresses."""
        size = values.shape[1]
        flat = self._places(addresses, size).ravel()
        warps = np.repeat(threads // 32 + 1, size).astype(np.int16)
        others = (self._stored[flat] != 0) & (self._stored[flat] != warps)
        others |= (self._loaded[flat] != 0) & (self._loaded[flat] != warps)
        self._refuse(others & (self._bytes[flat] != values.ravel()), flat)
        self._stored[flat] = warps
        self._bytes[flat] = values.ravel()

    def _places(self, addresses: Longs, size: int) -> Longs:
        if len(addresses) and (addresses.min() < 0 or addresses.max() + size > len(self._bytes)):
            raise BoundsError(f"shared memory at {int(addresses.max())}, which ends before")
        return addresses[:, None] + np.arange(size)

    def _refuse(self, clashes: NDArray[np.bool_], places: Longs) -> None:
        if clashes.any():
            where = int(places[clashes][0])
            raise SharedRaceError(
                f"two warps meet at shared byte {where}, and no barrier is between"
            )
