"""Devices of the CPU on which a launch is interpreted, compiled, or executed as compiled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from octavo.backends.cuda.accelerator import Fetching, Graph, Kernel
from octavo.backends.cuda.exchange import Exchange
from octavo.backends.torch.device import HostDevice
from octavo.distributed.context import ParallelContext
from octavo.observe.machine import Memory

_Made = TypeVar("_Made")


class Launched(NamedTuple):
    """One launch, with all that it was given."""

    kernel: Any
    grid: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    numbers: tuple[float, ...]
    constants: dict[str, Any]


class Home(HostDevice):
    """A card that is the CPU; implements `octavo.backends.cuda.accelerator.Accelerator`."""

    name = "the CPU in place of a card"
    compiles_kernels = True

    def __init__(
        self, run: Callable[[Launched], None], *, multiplies_eight_bits: bool = True
    ) -> None:
        super().__init__()
        self._run = run
        self.multiplies_eight_bits = multiplies_eight_bits

    def launch(
        self,
        kernel: Kernel,
        grid: tuple[int, ...],
        tensors: Sequence[Tensor],
        numbers: Sequence[float],
        **constants: Any,
    ) -> None:
        self._run(Launched(kernel, grid, tuple(tensors), tuple(numbers), constants))

    def address(self, tensor: Tensor) -> int:
        return tensor.data_ptr()

    def pinned(self, num_bytes: int) -> Tensor:
        raise NotImplementedError

    def begin_fetch(self, tensors: Sequence[Tensor]) -> Fetching:
        raise NotImplementedError

    def capture(self, run: Callable[[], _Made], beside: Graph | None = None) -> tuple[Graph, _Made]:
        raise NotImplementedError

    def join(self, meeting: int, context: ParallelContext) -> Exchange:
        raise NotImplementedError

    def working(self) -> AbstractContextManager[None]:
        return torch.inference_mode()

    def memory(self) -> Memory:
        raise NotImplementedError

    def forget_peak(self) -> int:
        raise NotImplementedError

    def peak_bytes(self) -> int:
        raise NotImplementedError


def interpret(launched: Launched) -> None:
    """Run a launch by Triton's interpreter, if TRITON_INTERPRET is 1."""
    kernel, grid, tensors, numbers, constants = launched
    kernel[grid](*tensors, *numbers, **constants)


def on_card(launched: Launched) -> None:
    """Run a launch on a card, with copies of all memory that its arguments look into."""
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def there(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in kept:
            here = torch.empty(0, dtype=torch.uint8).set_(storage)
            kept[storage.data_ptr()] = here, here.cuda()
        typed = kept[storage.data_ptr()][1].view(tensor.dtype)
        return typed.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())

    kernel, grid, tensors, numbers, constants = launched
    kernel[grid](*map(there, tensors), *numbers, **constants)
    for here, moved in kept.values():
        here.copy_(moved)


def card() -> Home:
    """Return the card that torch computes on."""
    has_eight_bits = torch.cuda.get_device_capability() >= (8, 9)
    return Home(on_card, multiplies_eight_bits=has_eight_bits)
