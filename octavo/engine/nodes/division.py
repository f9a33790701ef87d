"""The parts that nodes divide among them: stages, or ranks whose results are added up.

The processes that join the first node are its members: the stages of other nodes, or the first
rank of each other node, which starts its further ones.
"""

from __future__ import annotations

from msgspec import Struct

from octavo.options.engine import EngineArguments

CONTROL, STEPS, PARTS = "control", "steps", "parts"  # the connections of a member


class Division(Struct, frozen=True):
    """The numbers of nodes and of what they divide."""

    nnodes: int
    stages: int
    ranks: int = 0  # that add up; 0: stages are divided

    @classmethod
    def of(cls, arguments: EngineArguments) -> Division:
        """Return the division that an engine's arguments ask for."""
        adds_up = arguments.tensor_parallel_form == "sums"
        ranks = arguments.tensor_parallel_size if adds_up else 0
        return cls(arguments.nnodes, arguments.pipeline_parallel_size, ranks)

    @property
    def local(self) -> int:
        """The members of each node."""
        return 1 if self.ranks else self.stages // self.nnodes

    @property
    def ranks_of_node(self) -> int:
        """The ranks of each node that add up."""
        return self.ranks // self.nnodes

    @property
    def channels(self) -> tuple[str, ...]:
        """The names of a member's connections."""
        return (CONTROL, STEPS, PARTS) if self.ranks else (CONTROL, STEPS)

    def members(self, node: int) -> range:
        """Return the numbers of a node's members."""
        return range(node * self.local, (node + 1) * self.local)

    @property
    def further_members(self) -> range:
        """The numbers of those of all nodes but the first."""
        return range(self.local, self.nnodes * self.local)

    def name_of(self, member: int) -> str:
        """Return what a member computes, in words."""
        if not self.ranks:
            return f"stage {member}"
        first, count = member * self.ranks_of_node, self.ranks_of_node
        return f"rank {first}" if count == 1 else f"ranks {first} to {first + count - 1}"

    def process_of(self, member: int) -> tuple[str, int]:
        """Return the name of a member's own process, and how many there are like it."""
        if not self.ranks:
            return f"stage {member}", self.stages
        return f"rank {member * self.ranks_of_node}", self.ranks
