"""The further ranks of an engine whose ranks have devices of their own."""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Sequence

from octavo.backends.base import Backend
from octavo.backends.kind import WeightFile
from octavo.distributed.context import DevicePlace, ParallelContext
from octavo.engine.ranks.group import ProcessGroup
from octavo.resolve import EngineConfig

PROGRAM = "octavo.engine.ranks.device_process"


class DeviceGroup(ProcessGroup):
    """The further ranks, with a connection to each for the steps that the first one posts."""

    def __init__(self, num_ranks: int) -> None:
        super().__init__(num_ranks)
        # The libraries of devices find each other through it.
        self._meeting = os.memfd_create("octavo meeting", os.MFD_CLOEXEC)
        weakref.finalize(self, os.close, self._meeting)
        self._steps: list[socket.socket] = []
        weakref.finalize(self, _close_all, self._steps)
        try:
            for rank in range(1, num_ranks):
                ours, theirs = socket.socketpair()
                self._steps.append(ours)
                with theirs:
                    words = ["--steps", str(theirs.fileno()), "--meeting", str(self._meeting)]
                    words += ["--rank", str(rank), "--ranks", str(num_ranks)]
                    inherited = [theirs.fileno(), self._meeting]
                    self._launch(f"rank {rank}", num_ranks, PROGRAM, words, inherited)
        except BaseException:
            self.close()
            raise

    @property
    def place(self) -> DevicePlace:
        """The place of this process."""
        return DevicePlace(0, self.size, self._meeting, tuple(self._steps), self)

    @property
    def context(self) -> ParallelContext:
        return self.place.context

    def load(self, config: EngineConfig, files: Sequence[WeightFile], backend: Backend) -> None:
        from octavo.backends.cuda.ranks import LeadingBackend

        assert isinstance(backend, LeadingBackend), "no other backend has ranks with devices"
        self._end = backend.communicator.end
        super().load(config, files, backend)

    def wait(self) -> int:
        """Wait until all others have their weights, of which this device has none."""
        super().wait()
        return 0

    def leave_connections(self) -> None:
        super().leave_connections()
        _close_all(self._steps)


def _close_all(connections: Sequence[socket.socket]) -> None:
    for each in connections:
        each.close()
