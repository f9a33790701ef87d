"""Draws of steps that follow each other: one more token for the same slots, all drawn there.

Most steps of a busy engine are so. What the host does for each sequence is then done for all at
once, by arrays. Its tokens stay on the device, which begins the next step before the host has them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from octavo.backends.base import Ints, Longs
from octavo.backends.cuda.accelerator import Fetching
from octavo.backends.cuda.filters import host_filters
from octavo.backends.step import LAST_SAMPLE, Draws, HostBatch, StepOutput
from octavo.backends.torch.sampling import noise
from octavo.backends.torch.sampling.slot import Slot


class SteadyDraws:
    """The slots of one step, which have no rules, for the steps that continue it."""

    def __init__(self, slots: Ints, of_slots: Sequence[Slot]) -> None:
        self.slots = slots
        self.temperatures = np.array([slot.sampling.temperature for slot in of_slots])
        self.filters = host_filters([slot.sampling for slot in of_slots])
        self._texts = [slot.tokens for slot in of_slots]
        self._seeds = noise.mixed([slot.sampling.seed for slot in of_slots])
        self._counts = np.array(
            [len(slot.tokens) - slot.sampling.num_prompt for slot in of_slots], np.uint64
        )

    def continues(self, batch: HostBatch, draws: Draws) -> bool:
        """Return whether a step asks for a token more of each of these slots, and nothing else."""
        return (
            draws.slots is self.slots
            and not (draws.freed or draws.opened or draws.appended or draws.masks is not None)
            and not (batch.copies or batch.loads or batch.saves or batch.adapter_slots)
            and bool((batch.token_ids == LAST_SAMPLE).all())
        )

    def next_keys(self) -> Longs:
        """Return the keys of the noise of a step's draws [slots, 2], once for each step."""
        keys = noise.keys_of(self._seeds, self._counts).view(np.int64)
        self._counts += np.uint64(1)
        return keys

    def append(self, drawn: NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
        """Add a token to each text, and return them as those of a step's samples."""
        tokens = drawn.tolist()
        for text, token in zip(self._texts, tokens, strict=True):
            text.append(token)
        return tuple([(token,) for token in tokens])


class Drawing:
    """A steady step whose tokens are on their way to the host, until it is finished."""

    def __init__(
        self, fetching: Fetching, finish: Callable[[NDArray[np.int64]], StepOutput]
    ) -> None:
        self._fetching, self._finish = fetching, finish
        self.output: StepOutput | None = None

    def done(self) -> bool:
        """Return whether `finish` need not wait."""
        return self.output is not None or self._fetching.done()

    def finish(self) -> None:
        """Wait for the tokens, and make the step's output of them."""
        (drawn,) = self._fetching.wait()
        self.output = self._finish(drawn)


class Drawings:
    """The steady steps in flight, which any thread may finish, in their order."""

    def __init__(self) -> None:
        self._in_flight: deque[Drawing] = deque()
        self._lock = Lock()

    def add(self, drawing: Drawing) -> Drawing:
        """Add the newest one."""
        with self._lock:
            self._in_flight.append(drawing)
        return drawing

    def finish(self, last: Drawing | None = None) -> None:
        """Finish all up to this one, or all there are."""
        with self._lock:
            while self._in_flight and (last is None or last.output is None):
                self._in_flight[0].finish()
                self._in_flight.popleft()


class DevicePending:
    """A step of the device; implements `octavo.backends.step.Pending`."""

    def __init__(self, future: Future[StepOutput | Drawing], drawings: Drawings) -> None:
        self._future, self._drawings = future, drawings

    def done(self) -> bool:
        if not self._future.done() or self._future.exception() is not None:
            return self._future.done()
        result = self._future.result()
        return not isinstance(result, Drawing) or result.done()

    def collect(self) -> StepOutput:
        result = self._future.result()
        if not isinstance(result, Drawing):
            return result
        self._drawings.finish(result)
        assert result.output is not None
        return result.output
