"""A real engine on the native backend whose steps fail for long chunks: no memory is left."""

from __future__ import annotations

import numpy as np

from octavo.backends.native.backend import NativeBackend
from octavo.backends.step import Draws, HostBatch, Pending
from octavo.engine.process import CoreAndFacts, Wrap, build_model_engine
from octavo.options.engine import EngineArguments

MOST_ROWS = 40  # of one sequence in a step
MESSAGE = "the system gives the native engine no more memory"

_step = NativeBackend.step


def step(self: NativeBackend, batch: HostBatch, draws: Draws) -> Pending:
    """Fail, as when the system refuses memory, if a sequence has too many rows in the step."""
    if np.diff(batch.row_starts).max(initial=0) > MOST_ROWS:
        raise MemoryError(MESSAGE)
    return _step(self, batch, draws)


def make(arguments: EngineArguments, wrap: Wrap, cache_key: bytes) -> CoreAndFacts:
    """Build the engine: a factory for `octavo.engine.process`."""
    NativeBackend.step = step  # type: ignore[method-assign]
    return build_model_engine(arguments, wrap, cache_key)
