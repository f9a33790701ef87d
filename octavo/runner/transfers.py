"""KV blocks on their way between a worker's cache and another place, as plans ask for it.

A block is saved by the step whose plan names it, before that step writes anything; its content is
passed on when the step is collected. A block is loaded by the first step that is submitted after
its content has come, which may be later than the step whose plan names it; the result of the step
that loads it says so. Steps run in order, so neither disturbs what another step computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from octavo.backends.base import Backend
from octavo.backends.step import Bytes
from octavo.core.plan import BlockTransfer, StepPlan
from octavo.runner.batch import Step

WAIT_SECONDS = 0.001  # for a load, by a step that has nothing to compute

Ended = tuple[tuple[int, bool], ...]  # (number, whether it has succeeded) of loads


class KVStore(Protocol):
    """Another place for KV: a tier of memory, a disk, a remote cache.

    Transfers are known by their numbers. Content is that of one model on one kind of backend: the
    store keeps what others have saved apart. No method but `wait` takes long.
    """

    def begin_save(self, save: BlockTransfer) -> None:
        """Expect the content of a block.

        If the block is forgotten, or everything is, its content must not be kept when it comes.
        """

    def end_save(self, number: int, content: Bytes) -> None:
        """Keep the content that was expected under this number; the array is the store's."""

    def begin_load(self, load: BlockTransfer) -> None:
        """Begin to fetch a block. Each load ends, and is returned once by `ended_loads`."""

    def ended_loads(self) -> Sequence[tuple[int, Bytes | None]]:
        """Return the loads that have ended since the last call: the content, None if it is lost."""

    def wait(self, seconds: float) -> None:
        """Wait until a load has ended, for so many seconds at most."""


class Transfers:
    """The loads and saves of one worker."""

    def __init__(self, store: KVStore, backend: Backend) -> None:
        self._store = store
        self._backend = backend
        self._loading: dict[int, BlockTransfer] = {}

    def begin(self, plan: StepPlan, step: Step) -> tuple[Step, Ended]:
        """Add to a step what it saves and loads; return it, and the loads that end with it."""
        store = self._store
        for save in plan.saves:
            store.begin_save(save)
        for load in plan.loads:
            self._loading[load.number] = load
            store.begin_load(load)
        if not (self._loading or plan.saves):
            return step, ()
        if self._loading and not plan.slots:
            store.wait(WAIT_SECONDS)
        ended, contents = [], []
        for number, content in store.ended_loads():
            load = self._loading.pop(number)
            has_succeeded = content is not None and self._fits(load, content)
            ended.append((number, has_succeeded))
            if content is not None and has_succeeded:
                contents.append((load.block, load.group, content))
        saves = tuple([(save.block, save.group) for save in plan.saves])
        if saves or contents:
            batch = step.batch._replace(saves=saves, loads=tuple(contents))
            step = step._replace(batch=batch)
        return step, tuple(ended)

    def _fits(self, load: BlockTransfer, content: Bytes) -> bool:
        """Return whether this can be a block's content: what a store returns may be damaged."""
        return content.nbytes == self._backend.block_bytes(load.group)

    def end_saves(self, plan: StepPlan, saved: Sequence[Bytes]) -> None:
        """Pass on what a step has saved."""
        for save, content in zip(plan.saves, saved, strict=True):
            self._store.end_save(save.number, content)
