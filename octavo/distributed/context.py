"""This rank's place among all ranks: an argument wherever it matters, never a global."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ParallelContext:
    """Tensor parallelism: `ranks` hold a slice of every matrix each."""

    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.ranks:
            raise ValueError(f"rank {self.rank} is not one of {self.ranks}")


ALONE = ParallelContext()
