"""Pools in which some allocations fail although blocks are free."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.core.config import CoreConfig
from octavo.core.kv.block_pool import BlockPool
from octavo.core.kv.manager import make_pool
from octavo.core.kv.page_pool import PagePool
from octavo.core.kv.policies import Pool


@dataclass
class Refusals:
    """The allocations that the world makes fail, and how many there were."""

    refuse_at: int | None
    to_refuse: int = 0
    num_calls: int = 0
    num_refused: int = 0

    def refuses(self) -> bool:
        """Count an allocation, and return whether it fails."""
        self.num_calls += 1
        if self.to_refuse:
            self.to_refuse -= 1
        elif self.num_calls != self.refuse_at:
            return False
        self.num_refused += 1
        return True


class _RefusingBlocks(BlockPool):
    __slots__ = ("refusals",)

    def __init__(self, config: CoreConfig, refusals: Refusals) -> None:
        super().__init__(config.num_blocks, len(config.groups))
        self.refusals = refusals

    def allocate(self, *counts: int) -> list[int] | None:
        return None if self.refusals.refuses() else super().allocate(*counts)


class _RefusingPages(PagePool):
    __slots__ = ("refusals",)

    def __init__(self, config: CoreConfig, refusals: Refusals) -> None:
        super().__init__(config.num_blocks, config.blocks_per_page)
        self.refusals = refusals

    def allocate(self, *counts: int) -> list[int] | None:
        return None if self.refusals.refuses() else super().allocate(*counts)


def refusing_pool(config: CoreConfig, refusals: Refusals) -> Pool:
    """Return the pool that the engine would make, with refusals."""
    is_simple = isinstance(make_pool(config), BlockPool)
    return (_RefusingBlocks if is_simple else _RefusingPages)(config, refusals)
