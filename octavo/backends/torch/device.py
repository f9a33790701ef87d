"""The device on which the operations compute: how arrays of the host get there and back.

The operations are the same on every device. What differs is here, and in the batch of a step
(attention.py), which on a device may not ask for what is computed there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]


class TensorDevice(Protocol):
    """A device that has tensors."""

    @property
    def device(self) -> torch.device:
        """The device by torch's name, for tensors that are made there."""

    def step(self) -> AbstractContextManager[object]:
        """Send the work of this thread, which is a step, to the device; only `fetch` may wait."""

    def upload(self, arrays: Sequence[Array]) -> list[Tensor]:
        """Return arrays of the host as tensors of the device, all of them in one copy."""

    def fetch(self, tensors: Sequence[Tensor]) -> list[Array]:
        """Wait for tensors of the device; return them as arrays of the host."""

    def constant(self, key: Hashable, make: Callable[[], Array]) -> Tensor:
        """Return a tensor that many steps use; `make` is called for the first of them."""


class HostDevice:
    """The CPU, whose tensors are arrays of the host; implements `TensorDevice`."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self._constants: dict[Hashable, Tensor] = {}

    def step(self) -> AbstractContextManager[object]:
        return torch.inference_mode()

    def upload(self, arrays: Sequence[Array]) -> list[Tensor]:
        return [torch.from_numpy(np.ascontiguousarray(each)) for each in arrays]

    def fetch(self, tensors: Sequence[Tensor]) -> list[Array]:
        return [each.numpy() for each in tensors]

    def constant(self, key: Hashable, make: Callable[[], Array]) -> Tensor:
        if key not in self._constants:
            (self._constants[key],) = self.upload([make()])
        return self._constants[key]


HOST = HostDevice()
