"""Worlds with adapters are right, and find what could be wrong in their loading."""

from __future__ import annotations

from collections import deque

import pytest

from octavo.core.request import Ready
from octavo.core.stats import ADAPTER
from octavo.engine.commands import CommandRefusedError
from octavo.wire.commands import LoadedFile
from tests.sim.adapters.world import AdapterWorld, SimLoader

NUM_SEEDS = 20  # among which each planted bug must be found


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_every_request_ends_as_it_must(seed: int) -> None:
    AdapterWorld(seed).run()


class ForgetsPins(SimLoader):
    """Requests that have waited do not pin their adapter."""

    def _let_go(self, digest: str) -> None:
        for name in self._waiting.pop(digest, {}):
            self._ready.append(Ready(name, ADAPTER))


class NeverUnpins(SimLoader):
    """An adapter that was used stays pinned."""

    def leave(self, request_id: str) -> bool:
        pins = {digest: dict(names) for digest, names in self._pins.items()}
        has_waited = super().leave(request_id)
        self._pins |= {digest: names for digest, names in pins.items() if digest in self._packed}
        return has_waited


class LosesErrors(SimLoader):
    """Requests are not given the errors of their adapters."""

    def _fail(self, digest: str, error: CommandRefusedError) -> None:
        self._waiting.pop(digest, None)


class UnloadsAtOnce(SimLoader):
    """An adapter that is unloaded leaves memory although requests use it."""

    def unload(self, label: str) -> None:
        del self._packed[label]


class OvertakesWithoutEnd(SimLoader):
    """Whatever is in memory overtakes what waits for room."""

    def _may_overtake(self) -> bool:
        return True


class ForgetsTheQueue(SimLoader):
    """The queue is not looked at again when a request leaves."""

    def leave(self, request_id: str) -> bool:
        queue, self._queue = self._queue, deque()
        has_waited = super().leave(request_id)
        self._queue = queue
        return has_waited

    def take(self) -> list[Ready]:
        queue, self._queue = self._queue, deque()
        taken = super().take()
        self._queue = queue
        return taken


class CountsNoBytes(SimLoader):
    """Memory is bounded by the number of adapters alone."""

    def _make_room(self, num_bytes: int, digest: str) -> bool:
        bounds, self._bounds = self._bounds, self._bounds._replace(num_bytes=1 << 40)
        has_room = super()._make_room(num_bytes, digest)
        self._bounds = bounds
        return has_room


class WakesOneOfAll(SimLoader):
    """The first alone goes on of those that wait for an adapter."""

    def _end(self, digest: str, outcome: LoadedFile | CommandRefusedError) -> None:
        names = self._waiting.get(digest, {})
        self._waiting[digest] = dict(list(names.items())[:1])
        super()._end(digest, outcome)


class TriesForEver(SimLoader):
    """One that has found no room is loaded again whatever the next error is."""

    def _end(self, digest: str, outcome: LoadedFile | CommandRefusedError) -> None:
        if digest in self._needed and not isinstance(outcome, LoadedFile):
            self._loading.pop(digest, None)
            self._queue.appendleft(digest)
        else:
            super()._end(digest, outcome)


BUGS = (
    ForgetsPins,
    NeverUnpins,
    LosesErrors,
    UnloadsAtOnce,
    OvertakesWithoutEnd,
    ForgetsTheQueue,
    CountsNoBytes,
    WakesOneOfAll,
    TriesForEver,
)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: type[SimLoader]) -> None:
    for seed in range(NUM_SEEDS):
        try:
            AdapterWorld(seed, bug).run()
        except (AssertionError, KeyError):
            return
    raise AssertionError("no world finds it")
