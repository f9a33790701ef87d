"""A store of KV blocks in this process's memory, which may be slow, and may lose or damage blocks.

It is also the index that the core asks, as the simulator's own store is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from octavo.backends.step import Bytes
from octavo.core.plan import BlockTransfer
from tests.sim.events import Fault
from tests.sim.kv.memory import require
from tests.sim.world import World

MOST_CALLS = 6  # of `ended_loads` until a load of a bad store ends
Content = tuple[int, bytes]  # KV group, digest


class HostStore:
    """Implements `octavo.runner.transfers.KVStore` and `octavo.core.kv.transfers.KVIndex`."""

    def __init__(self, seed: int = 0, kind: str = "good") -> None:
        self.kind = kind  # "none", "good" or "bad"
        self.num_calls = 0  # of `ended_loads` until a load of a good store ends
        self.num_saved = self.num_begun = self.num_loaded = self.num_failed = 0
        self.blocks: dict[Content, Bytes] = {}
        self._rng = random.Random(f"{seed} host store")
        self._lost: set[Content] = set()  # which the index still names
        self._saving: dict[int, Content] = {}
        self._loading: list[tuple[int, BlockTransfer]] = []  # with the calls that each still takes

    def restart(self) -> None:
        """Forget what a dead engine was transferring; what it has saved stays."""
        self._saving.clear()
        self._loading.clear()

    # as the core's index

    def has(self, group: int, digest: bytes) -> bool:
        return (group, digest) in self.blocks or (group, digest) in self._lost

    def forget(self, group: int, digest: bytes) -> None:
        self.blocks.pop((group, digest), None)
        self._lost.discard((group, digest))
        self._saving = {n: key for n, key in self._saving.items() if key != (group, digest)}

    def reset(self) -> None:
        self.blocks.clear()
        self._lost.clear()
        self._saving.clear()

    # as the runner's store

    def begin_save(self, save: BlockTransfer) -> None:
        require(self.kind != "none", "a save without an index")
        self._saving[save.number] = save.group, save.digest

    def end_save(self, number: int, content: Bytes) -> None:
        key = self._saving.pop(number, None)
        if key is None:
            return
        if self.kind == "bad" and self._rng.random() < 0.3:
            self._lost.add(key)
            return
        self.num_saved += 1
        self.blocks[key] = content

    def begin_load(self, load: BlockTransfer) -> None:
        self.num_begun += 1
        calls = self.num_calls if self.kind == "good" else self._rng.randint(0, MOST_CALLS)
        self._loading.append((calls, load))

    def ended_loads(self) -> Sequence[tuple[int, Bytes | None]]:
        ended = [load for calls, load in self._loading if calls == 0]
        self._loading = [(calls - 1, load) for calls, load in self._loading if calls]
        return [(load.number, self._fetch(load)) for load in ended]

    def _fetch(self, load: BlockTransfer) -> Bytes | None:
        key = load.group, load.digest
        content = self.blocks.get(key)
        if content is not None and self.kind == "bad" and self._rng.random() < 0.2:
            content = np.append(content, np.uint8(0))  # of another size than a block
            self.num_failed += 1
            return content
        if content is None:
            self._lost.discard(key)
            self.num_failed += 1
            return None
        self.num_loaded += 1
        return content

    def wait(self, seconds: float) -> None:
        """Return at once: here the number of calls decides, never the time."""


def with_store(world: World, kind: str) -> World:
    """Return a world whose engines save and load KV, and in which three of them die."""
    last = max(tick for tick, _ in world.events)
    deaths = [(last * part // 4, Fault("die", "between")) for part in (1, 2, 3)]
    events = sorted((*world.events, *deaths), key=lambda event: event[0])
    config = replace(world.config, prefix_caching=True)
    return replace(world, config=config, events=tuple(events), store=kind)
