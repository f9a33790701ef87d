"""Another place for KV: what is saved to it can be loaded, unless it is slow, or lies.

The store is shared by both workers, and is the index that the core asks.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from octavo.core.plan import BlockTransfer
from tests.sim.kv.memory import Memory, require

if TYPE_CHECKING:
    from tests.sim.executor import Slot

MOST_STEPS = 6  # that a load takes


class Store:
    """Saved blocks by KV group and digest, with the version of the weights of each."""

    def __init__(self, seed: int, kind: str) -> None:
        self.kind = kind  # "none", "good" or "bad"
        self.num_begun = self.num_loaded = self.num_failed = 0
        # Numbers for what KV depends on besides tokens, for the workers of all engines.
        self.conditions: dict[object, int] = {}
        self.version = 0  # of the weights, which a new engine has as the last one had them
        self._rng = random.Random(f"{seed} store")
        self._blocks: dict[tuple[int, bytes], tuple[list[int], int, list[Slot]]] = {}
        self._lost: set[tuple[int, bytes]] = set()  # which the index still names
        self._under_way: list[tuple[int, BlockTransfer]] = []  # with the steps that each takes
        self._numbers: set[int] = set()

    def restart(self) -> None:
        """Forget what a dead engine was loading; what it has saved stays."""
        self._under_way.clear()
        self._numbers.clear()

    # as the core's index

    def has(self, group: int, digest: bytes) -> bool:
        """Return whether a block is here, or was."""
        return (group, digest) in self._blocks or (group, digest) in self._lost

    def forget(self, group: int, digest: bytes) -> None:
        """Remove a block, stored or lost."""
        self._blocks.pop((group, digest), None)
        self._lost.discard((group, digest))

    def reset(self) -> None:
        """Remove every block that is stored."""
        self._blocks.clear()
        self._lost.clear()

    # as the workers' store

    def save(self, memory: Memory, save: BlockTransfer, owners: list[Slot]) -> None:
        """Keep a block, and whose it was."""
        require(self.kind != "none", "a save without an index")
        cells = list(memory.cells[save.group][save.block])
        version = memory.versions[save.group][save.block]
        self._blocks[save.group, save.digest] = cells, version, owners
        if self.kind == "bad" and self._rng.random() < 0.5:
            self._lost.add((save.group, save.digest))

    def load(
        self, loads: tuple[BlockTransfer, ...], memories: list[Memory]
    ) -> tuple[tuple[int, bool], ...]:
        """Begin loads, and return those that have ended now."""
        for load in loads:
            require(load.number not in self._numbers, f"load {load.number} twice")
            self._numbers.add(load.number)
            self.num_begun += 1
            num_steps = 0 if self.kind == "good" else self._rng.randint(0, MOST_STEPS)
            self._under_way.append((num_steps, load))
        ended = [load for num_steps, load in self._under_way if num_steps == 0]
        self._under_way = [(left - 1, load) for left, load in self._under_way if left]
        return tuple((load.number, self._finish(load, memories)) for load in ended)

    def _finish(self, load: BlockTransfer, memories: list[Memory]) -> bool:
        key = load.group, load.digest
        if key in self._lost or key not in self._blocks:
            self._lost.discard(key)
            self._blocks.pop(key, None)
            self.num_failed += 1
            return False
        cells, version, _ = self._blocks[key]
        for memory in memories:
            memory.write(load.group, load.block, list(cells), version)
        self.num_loaded += 1
        return True

    def has_of(self, slot: Slot) -> bool:
        """Return whether a block that this slot had when it was saved is still here."""
        return any(slot in owners for _, _, owners in self._blocks.values())
