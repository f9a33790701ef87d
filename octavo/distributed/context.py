"""The position of this rank among all ranks; always an argument, never a global."""

from __future__ import annotations

from msgspec import Struct


class ParallelContext(Struct, frozen=True):
    """A rank in tensor parallelism, where each of `ranks` holds a slice of every matrix."""

    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank must be from 0 to {self.ranks - 1}, is {self.rank}")


class RankPlace(Struct, frozen=True):
    """A process among those that compute one model, and the memory that all of them map."""

    rank: int
    ranks: int
    descriptor: int  # of the memory
    num_bytes: int
    # What ends the other ranks once nothing refers to it any more.
    owner: object = None

    @property
    def name(self) -> str:
        return f"rank {self.rank}"


class StagePlace(Struct, frozen=True):
    """A process among those that compute some layers of a model each, one after the other."""

    stage: int
    stages: int
    # Of its connections: to the first stage; the first one's, to each of the others.
    descriptors: tuple[int, ...]
    # What ends the other stages once nothing refers to it any more.
    owner: object = None

    @property
    def name(self) -> str:
        return f"stage {self.stage}"


ALONE = ParallelContext()
