"""The exchange of ranks on devices of their own: by NCCL between cards, by gloo in the tests."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from octavo.backends.base import BackendEndedError
from octavo.distributed.context import ParallelContext

if TYPE_CHECKING:
    from octavo.backends.cuda.accelerator import Accelerator


_REASON_SECONDS = 1.0


class Exchange(Protocol):
    """The connection of one device to those of the other ranks."""

    def gather(self, values: Tensor) -> Tensor:
        """Submit the exchange; return the tensors of all ranks, which have one shape, in a row.

        All ranks make the same calls in the same order. Raise RuntimeError if a rank has ended.
        """

    def end(self) -> None:
        """End what waits for another rank, in any thread."""


class DeviceCommunicator:
    """The connection of a rank to the others; implements `octavo.distributed.Communicator`.

    A sum is gathered, and added up here in the order of the ranks, in float32: its bits depend on
    neither the number of rows nor on how a library would add them up.
    """

    def __init__(self, context: ParallelContext) -> None:
        self.context = context
        self._exchange: Exchange | None = None
        self._reason = ""
        self._has_ended = Event()

    def join(self, home: Accelerator, meeting: str) -> None:
        """Wait for the other ranks, and connect to them, unless that has been done."""
        if self._exchange is None:
            self._exchange = home.join(meeting, self.context)

    def end(self, reason: str) -> None:
        """End the exchange because a rank has ended; the reason is raised where one waits."""
        self._reason = self._reason or reason
        self._has_ended.set()
        if self._exchange is not None:
            self._exchange.end()

    def all_reduce(self, values: Tensor) -> Tensor:
        first, *others = self._gathered(values).unbind(0)
        total = first.float()
        for part in others:
            total = total + part.float()
        return total.to(values.dtype)

    def all_gather(self, values: Tensor) -> Tensor:
        return torch.cat(self._gathered(values).unbind(0), -1)

    def of_first(self, values: Tensor) -> Tensor:
        """Return the first rank's tensor."""
        return self._gathered(values)[0]

    def _gathered(self, values: Tensor) -> Tensor:
        assert self._exchange is not None, "join must be called first"
        try:
            return self._exchange.gather(values)
        except RuntimeError as error:
            raise BackendEndedError(self.why(error)) from error

    def why(self, error: Exception) -> str:
        """Return why another rank does not answer, which its watcher may know a moment later."""
        self._has_ended.wait(_REASON_SECONDS)
        return self._reason or f"a rank has ended: {error}"
