"""The interface of a card, as the CUDA backend uses it; nothing else names torch.cuda.

All work goes to the device's one queue, in the order in which it is submitted. The host waits for
it in `fetch`, or later for what `begin_fetch` has begun to copy. Work that is the same in many
steps can be captured as a graph, and is then submitted by one call.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from octavo.backends.cuda.exchange import Exchange
from octavo.backends.torch.device import Array, TensorDevice
from octavo.distributed.context import ParallelContext
from octavo.observe.machine import Memory

_ALIGNMENT = 64  # bytes: where each array begins in a buffer that many share
_Made = TypeVar("_Made")


class Accelerator(TensorDevice, Protocol):
    """A card with a queue of work, memory of its own, and copies from and to the host."""

    @property
    def name(self) -> str:
        """The name of the card, for people."""

    @property
    def multiplies_eight_bits(self) -> bool:
        """True if it has instructions for floats of eight bits (E4M3): products, conversions."""

    @property
    def compiles_kernels(self) -> bool:
        """True if Triton compiles kernels for it."""

    def working(self) -> AbstractContextManager[None]:
        """Send the work of this thread to the card, with waits wherever they are needed."""

    def memory(self) -> Memory:
        """Return the memory of the card, and what of it is free for tensors."""

    def forget_peak(self) -> int:
        """Wait for all work; return the bytes of all tensors, and begin to note the most."""

    def peak_bytes(self) -> int:
        """Wait for all work; return the most bytes of all tensors since `forget_peak`."""

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        tensors: Sequence[Tensor],
        numbers: Sequence[float],
        **constants: object,
    ) -> None:
        """Submit one run of a kernel: so many programs, with these arguments in this order."""

    def address(self, tensor: Tensor) -> int:
        """Return where the numbers of a tensor begin in the device's memory."""

    def pinned(self, num_bytes: int) -> Tensor:
        """Return a buffer of bytes on the host from which copies do not wait.

        Who keeps one writes to it only when the copies that read it have ended, as after `fetch`.
        """

    def begin_fetch(self, tensors: Sequence[Tensor]) -> Fetching:
        """Submit a copy of tensors to the host, for which a later call waits."""

    def capture(self, run: Callable[[], _Made], beside: Graph | None = None) -> tuple[Graph, _Made]:
        """Note the work that `run` submits, which is not done; return it with what `run` returns.

        What `run` does has been done once before, so that nothing is compiled or made meanwhile.
        It uploads nothing and waits for nothing. What it makes has a value only after a replay. Its
        memory is that of the graph `beside` it, if there is one, and lasts as long as one of these
        graphs; a replay of one of them overwrites what the others have made.
        """

    def join(self, meeting: int, context: ParallelContext) -> Exchange:
        """Connect this device with those of the other ranks, once all of them have come.

        They find each other through a file, whose descriptor is `meeting`, and which is empty at
        first. It may be called in any thread, and may wait for ever for a rank that has ended.
        """


class Fetching(Protocol):
    """A copy to the host under way."""

    def done(self) -> bool:
        """Return whether `wait` would return at once."""

    def wait(self) -> list[Array]:
        """Wait for the copy in any thread; return the arrays."""


class Event(Protocol):
    """A place in the queue of work, as torch.cuda.Event is."""

    def query(self) -> bool:
        """Return whether the device has come so far."""

    def synchronize(self) -> None:
        """Wait until the device has come so far."""


class Graph(Protocol):
    """Work that was captured: the same operations on the same memory, whatever that now holds."""

    def replay(self) -> None:
        """Submit the work, in order with all other work of the device."""


class Kernel(Protocol):
    """A kernel as Triton makes it, which a grid turns into something that can be called."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]: ...


class Copies:
    """The copies of an accelerator: each is one buffer for many arrays, in pinned memory.

    A copy from pinned memory does not wait. Torch keeps freed pinned buffers, and uses one again
    only when the copies that read it have ended, so that a step allocates nothing from the system.
    """

    def __init__(
        self, device: torch.device, pinned: Callable[[int], Tensor], mark: Callable[[], Event]
    ) -> None:
        self.device = device
        self.pinned = pinned  # makes a buffer of bytes in pinned memory
        self._mark = mark  # an event behind all work so far
        self._constants: dict[Hashable, Tensor] = {}

    def upload(self, arrays: Sequence[Array]) -> list[Tensor]:
        """Copy arrays to the device; they may change as soon as this returns."""
        places, size = _places([each.nbytes for each in arrays])
        buffer = self.pinned(size)
        content = buffer.numpy()
        for place, each in zip(places, arrays, strict=True):
            content[place : place + each.nbytes] = (
                np.ascontiguousarray(each).reshape(-1).view(np.uint8)
            )
        copied = buffer.to(self.device, non_blocking=True)
        return [
            copied[place : place + each.nbytes].view(_TYPES[each.dtype.name]).view(each.shape)
            for place, each in zip(places, arrays, strict=True)
        ]

    def fetch(self, tensors: Sequence[Tensor]) -> list[Array]:
        """Copy tensors to the host, and wait once for all of them."""
        return self.begin_fetch(tensors).wait()

    def begin_fetch(self, tensors: Sequence[Tensor]) -> _Fetch:
        """Submit a copy of tensors to the host, all in one."""
        places, size = _places([each.nbytes for each in tensors])
        joined = torch.empty(size, dtype=torch.uint8, device=self.device)
        for place, each in zip(places, tensors, strict=True):
            flat = each.contiguous().view(-1).view(torch.uint8)
            joined[place : place + each.nbytes].copy_(flat)
        buffer = self.pinned(size)
        buffer.copy_(joined, non_blocking=True)
        forms = [(each.nbytes, _NAMES[each.dtype], tuple(each.shape)) for each in tensors]
        return _Fetch(buffer, list(zip(places, forms, strict=True)), self._mark())

    def constant(self, key: Hashable, make: Callable[[], Array]) -> Tensor:
        """Return what was uploaded once under a key."""
        if key not in self._constants:
            (self._constants[key],) = self.upload([make()])
        return self._constants[key]


class _Fetch:
    """A copy into one pinned buffer; implements `Fetching`."""

    def __init__(
        self,
        buffer: Tensor,
        parts: list[tuple[int, tuple[int, np.dtype[Any], tuple[int, ...]]]],
        event: Event,
    ) -> None:
        self._buffer, self._parts, self._event = buffer, parts, event

    def done(self) -> bool:
        return self._event.query()

    def wait(self) -> list[Array]:
        self._event.synchronize()
        content = self._buffer.numpy()
        return [
            content[place : place + size].view(kind).reshape(shape)
            for place, (size, kind, shape) in self._parts
        ]


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where arrays of these sizes begin in one buffer, and its size."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return places, end


_TYPES = {
    "uint8": torch.uint8,
    "bool": torch.bool,
    "int32": torch.int32,
    "int64": torch.int64,
    "float32": torch.float32,
    "float64": torch.float64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}
_NAMES = {
    each: np.dtype(name) for name, each in _TYPES.items() if name != "bfloat16"
}  # what numpy has
