"""Memory that outlives the engine: which requests it was at work on when it died.

The engine writes, before each step, the numbers of the requests in it; the front end, which holds
the same memory, reads them after a death. A message could still be on its way when the process is
killed; this cannot. There are two halves, and one byte that says which one counts, so that death
in the middle of a write leaves the half before.
"""

from __future__ import annotations

import mmap
import os
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain
from struct import Struct
from typing import Protocol

from octavo.core.engine import Executor
from octavo.core.plan import StepPlan, StepResult

MAX_NUMBERS = 4095
_HALF_BYTES = 8 * (1 + MAX_NUMBERS)
_HEADER_BYTES = 8
SIZE_BYTES = _HEADER_BYTES + 2 * _HALF_BYTES
_COUNT = Struct("<Q")


class CrashRecord:
    """The shared memory, from either side."""

    def __init__(self, descriptor: int) -> None:
        self._memory = mmap.mmap(descriptor, SIZE_BYTES)
        self._last: tuple[int, ...] | None = None

    @staticmethod
    def make() -> int:
        """A descriptor of fresh memory, to be inherited by the engine."""
        descriptor = os.memfd_create("octavo-black-box", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, SIZE_BYTES)
        return descriptor

    def write(self, numbers: Sequence[int]) -> None:
        """Say who is at work; what does not fit is left out."""
        kept = tuple(numbers[:MAX_NUMBERS])
        if kept == self._last:
            return
        self._last = kept
        memory, half = self._memory, 1 - (self._memory[0] & 1)
        begin = _HEADER_BYTES + half * _HALF_BYTES
        packed = Struct(f"<{1 + len(kept)}Q").pack(len(kept), *kept)
        memory[begin : begin + len(packed)] = packed
        memory[0] = half

    def read(self) -> tuple[int, ...]:
        """Who was at work last."""
        begin = _HEADER_BYTES + (self._memory[0] & 1) * _HALF_BYTES
        (count,) = _COUNT.unpack_from(self._memory, begin)
        count = min(count, MAX_NUMBERS)
        return Struct(f"<{count}Q").unpack_from(self._memory, begin + _COUNT.size)

    def close(self) -> None:
        """Give the memory back."""
        self._memory.close()


class Note(Protocol):
    """Where it is noted who is at work: a black box, in the end."""

    def write(self, numbers: Sequence[int]) -> None:
        """Say who is."""


class RecordingExecutor:
    """An executor whose plans are noted in the black box before they run."""

    def __init__(
        self, executor: Executor, box: Note, tell_size: Callable[[int], None] | None = None
    ) -> None:
        self._executor = executor
        self._box = box
        self._tell_size = tell_size  # of each step, in tokens
        self._numbers: dict[int, int] = {}  # slot → request number
        self._flights: deque[tuple[int, ...]] = deque()

    def submit(self, plan: StepPlan) -> None:
        for slot in plan.freed:
            self._numbers.pop(slot, None)
        for new in plan.opened:
            self._numbers[new.slot] = int(new.request_id)
        self._flights.append(tuple(self._numbers[slot] for slot in plan.slots))
        self._box.write(tuple(chain.from_iterable(self._flights)))
        if self._tell_size is not None:
            self._tell_size(plan.num_tokens)
        self._executor.submit(plan)

    def collect(self, wait: bool) -> StepResult | None:
        result = self._executor.collect(wait)
        if result is not None:
            self._flights.popleft()
        return result
