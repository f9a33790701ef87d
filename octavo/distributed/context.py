"""The position of this rank among all ranks; always an argument, never a global."""

from __future__ import annotations

from typing import Any

from msgspec import Struct


class ParallelContext(Struct, frozen=True):
    """A rank in tensor parallelism, where each of `ranks` holds a slice of every matrix."""

    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank must be from 0 to {self.ranks - 1}, is {self.rank}")


ALONE = ParallelContext()


class NodePlace(Struct, frozen=True):
    """A machine among those whose ranks add up, and its connections, of the backend's own type.

    The first rank of the first node has them to each other node, in their order; that of another
    node to the first one.
    """

    node: int
    nodes: int
    steps: tuple[Any, ...] = ()
    parts: tuple[Any, ...] = ()  # of sums


class RankPlace(Struct, frozen=True):
    """A process among those that compute one model, and the memory that all of them map."""

    rank: int
    ranks: int
    descriptor: int  # of the memory
    num_bytes: int
    threads: int = 0  # by default, of a rank that is bound to a node; 0: its part of the cores
    # What ends the other ranks once nothing refers to it any more.
    owner: object = None
    # Whether each rank has some inputs of every second product, and all add up what they make.
    sums: bool = False
    # Among those whose ranks add up; then `ranks` is the number of each. None: there is one.
    machine: NodePlace | None = None

    @property
    def name(self) -> str:
        return f"rank {self.rank if self.machine is None else self.context.rank}"

    @property
    def context(self) -> ParallelContext:
        """The share of the model's matrices that is cut out before they are packed."""
        if not self.sums:
            return ALONE
        node, nodes = (0, 1) if self.machine is None else (self.machine.node, self.machine.nodes)
        return ParallelContext(node * self.ranks + self.rank, nodes * self.ranks)


class StagePlace(Struct, frozen=True):
    """A process among those that compute some layers of a model each, one after the other."""

    stage: int
    stages: int
    # Its connections, of the backend's own type: to the first stage; the first one's, to each of
    # the others.
    links: tuple[Any, ...]
    ranks: RankPlace | None = None  # among those of the stage; None: it is one process
    num_local: int = 1  # stages on this machine, which compute at the same time
    # What ends the other stages once nothing refers to it any more.
    owner: object = None

    @property
    def name(self) -> str:
        rank = "" if self.ranks is None or self.leads else f", rank {self.ranks.rank}"
        return f"stage {self.stage}{rank}"

    @property
    def context(self) -> ParallelContext:
        """The share of the model's matrices that is cut out: all, since ranks divide panels."""
        return ALONE

    @property
    def leads(self) -> bool:
        """True for the process with the stage's connections, which is its first rank."""
        return self.ranks is None or self.ranks.rank == 0


class DevicePlace(Struct, frozen=True):
    """A process among those that compute one model, each on a device of its own."""

    rank: int
    ranks: int
    meeting: int  # the descriptor of a file without a name, through which the devices find another
    # The connections over which the first rank posts steps: one to each other; theirs, to it.
    links: tuple[Any, ...]
    # What ends the other ranks once nothing refers to it any more.
    owner: object = None

    @property
    def name(self) -> str:
        return f"rank {self.rank}"

    @property
    def context(self) -> ParallelContext:
        """The share of the model's matrices that is cut out when they are loaded."""
        return ParallelContext(self.rank, self.ranks)


Place = RankPlace | StagePlace | DevicePlace
