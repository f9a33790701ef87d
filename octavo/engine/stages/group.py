"""The further stages of an engine: started, watched and ended by the process of the first one."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from octavo.backends.base import Backend
from octavo.backends.kind import WeightFile
from octavo.backends.native.stages.backend import FirstStage
from octavo.distributed.context import StagePlace
from octavo.engine.ranks.group import ProcessGroup
from octavo.resolve import EngineConfig

PROGRAM = "octavo.engine.stages.process"


class StageGroup(ProcessGroup):
    """The further stages of an engine, each with a connection for its steps."""

    def __init__(self, num_stages: int) -> None:
        super().__init__(num_stages)
        self._steps: list[socket.socket] = []
        self._descriptors: tuple[int, ...] = ()  # of these, once the backend has them
        try:
            for stage in range(1, num_stages):
                ours, theirs = socket.socketpair()
                self._steps.append(ours)
                with theirs:
                    words = ["--steps", str(theirs.fileno())]
                    words += ["--stage", str(stage), "--stages", str(num_stages)]
                    self._launch(f"stage {stage}", PROGRAM, words, [theirs.fileno()])
        except BaseException:
            self.close()
            raise

    @property
    def place(self) -> StagePlace:
        """The place of this process, whose backend owns the connections from then on."""
        self._descriptors = tuple([each.detach() for each in self._steps])
        return StagePlace(0, self.size, self._descriptors, self)

    def leave_connections(self) -> None:
        """Leave those for steps too, over which a forked process would disturb its parent's."""
        super().leave_connections()
        if not self.close.alive or not self._descriptors:
            return
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        for descriptor in self._descriptors:  # which the backend still closes
            os.dup2(nothing, descriptor, inheritable=False)
        os.close(nothing)

    def load(self, config: EngineConfig, files: Sequence[WeightFile], backend: Backend) -> None:
        assert isinstance(backend, FirstStage), "no other backend has stages"
        links = backend.links

        def end(reason: str) -> None:
            for link in links:  # a step that waits for a stage fails
                link.close()

        self._end = end  # which must not refer to the backend: that refers to this group
        super().load(config, files, backend)
