"""The further stages of an engine: started, watched and ended by the process of the first one."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from octavo.backends.base import Backend
from octavo.backends.kind import WeightFile
from octavo.backends.native import _native
from octavo.backends.native.stages.backend import FirstStage
from octavo.distributed.context import StagePlace
from octavo.engine.ranks.followers import Follower
from octavo.engine.ranks.group import ProcessGroup
from octavo.engine.ranks.memory import RankMemory
from octavo.options.engine import EngineArguments
from octavo.resolve import EngineConfig

PROGRAM = "octavo.engine.stages.process"


def stages_on_machine(arguments: EngineArguments) -> int:
    """Return the number of an engine's stages on one machine."""
    return arguments.pipeline_parallel_size // arguments.nnodes


class _Processes(ProcessGroup):
    """Further processes of an engine, ranks of one of its stages among them."""

    def _launch_ranks(self, stage: int, num_stages: int, num_ranks: int) -> RankMemory:
        """Start the further ranks of a stage; return their memory, for this process to map."""
        memory = RankMemory(num_ranks)
        words = ["--stage", str(stage), "--stages", str(num_stages)]
        for rank in range(1, num_ranks):
            name = f"stage {stage}, rank {rank}"
            words_of_rank = [*words, *memory.words(rank)]
            self._launch(name, num_ranks, PROGRAM, words_of_rank, [memory.descriptor])
        return memory


class StageRanks(_Processes):
    """The further ranks of a stage, started by its first one, which ends with each of them."""

    def __init__(self, stage: int, num_stages: int, num_ranks: int) -> None:
        super().__init__(num_ranks)
        try:
            self.memory = self._launch_ranks(stage, num_stages, num_ranks)
        except BaseException:
            self.close()
            raise


class StageGroup(_Processes):
    """The further stages of an engine, each with a connection for its steps.

    Where stages have ranks, those of the first one are here too. Those of another are started by
    its first one.
    """

    def __init__(self, num_stages: int, num_ranks: int = 1, num_local: int | None = None) -> None:
        """Start the stages of this machine; all, or only so many, with this process."""
        super().__init__(num_stages)
        self._num_local = num_stages if num_local is None else num_local
        self._stages: list[Follower] = []  # but the first
        self._steps: list[_native.FrameLink] = []
        self._memory: RankMemory | None = None
        try:
            if num_ranks > 1:
                self._memory = self._launch_ranks(0, num_stages, num_ranks)
            for stage in range(1, self._num_local):
                ours, theirs = socket.socketpair()
                descriptor = ours.detach()
                self._add_steps(descriptor, _native.FrameLink(descriptor))
                with theirs:
                    words = ["--steps", str(theirs.fileno())]
                    words += ["--stage", str(stage), "--stages", str(num_stages)]
                    inherited = [theirs.fileno()]
                    made = self._launch(f"stage {stage}", num_stages, PROGRAM, words, inherited)
                self._stages.append(made)
        except BaseException:
            self.close()
            raise

    def _add_steps(self, descriptor: int, link: _native.FrameLink) -> None:
        """Take the connection for the steps of the next stage."""
        self._steps.append(link)
        self._descriptors.append(descriptor)

    @property
    def place(self) -> StagePlace:
        """The place of this process."""
        ranks = None if self._memory is None else self._memory.place()
        return StagePlace(0, self.size, tuple(self._steps), ranks, self._num_local, self)

    def load(self, config: EngineConfig, files: Sequence[WeightFile], backend: Backend) -> None:
        assert isinstance(backend, FirstStage), "no other backend has stages"
        links, ranks = backend.links, backend.ranks
        if self._memory is not None:
            self._memory.close()  # it is mapped here, and the others have it

        def end(reason: str) -> None:
            if ranks is not None:
                ranks.end(reason)
            for link in links:  # a step that waits for a stage fails
                link.close()

        self._end = end  # which must not refer to the backend: that refers to this group
        super().load(config, files, backend)
