"""The exchange of fake devices: gloo between processes, in the place of the cards' NCCL."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, distributed

from octavo.backends.cuda.exchange import LibraryExchange, Meeting
from octavo.backends.cuda.fake.tensor import FakeTensor
from octavo.distributed.context import ParallelContext

if TYPE_CHECKING:
    from octavo.backends.cuda.fake.accelerator import FakeAccelerator

_LOOPBACK = "127.0.0.1"
_TIMEOUT = timedelta(minutes=30)  # of an exchange; the end of a rank is noticed at once


class GlooExchange(LibraryExchange):
    """One fake device among several; implements `octavo.backends.cuda.exchange.Exchange`."""

    def __init__(
        self, accelerator: FakeAccelerator, meeting: int, context: ParallelContext
    ) -> None:
        found = Meeting(meeting)
        library: Any = distributed
        make = library.ProcessGroupGloo
        options = make._Options()
        options._devices = [make.create_device(hostname=_LOOPBACK)]
        options._timeout = _TIMEOUT
        store = library.FileStore(found.path, context.ranks)
        self._group = make(store, context.rank, context.ranks, options)
        self._accelerator, self._ranks = accelerator, context.ranks
        self._meeting = found

    def gather(self, values: Tensor) -> Tensor:
        made = values.new_empty(self._ranks, *values.shape)
        assert isinstance(values, FakeTensor)
        assert isinstance(made, FakeTensor)
        if not values.numel():
            return made
        source, target = values.on_cpu, made.on_cpu

        def run() -> None:
            parts = target.view(self._ranks, -1).view(torch.uint8).unbind(0)
            own = source.contiguous().view(-1).view(torch.uint8)
            self._group.allgather([list(parts)], [own]).wait()

        self._accelerator.exchange(run, target)
        return made

    def end(self) -> None:
        """End nothing: the end of a process ends what waits for it."""
