"""A real engine on the native backend whose steps fail for long chunks: no memory is left."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import ForwardResult
from octavo.backends.native.backend import NativeBackend
from octavo.backends.step import HostBatch
from octavo.engine.process import CoreAndFacts, Wrap, build_model_engine
from octavo.engine_arguments import EngineArguments

MOST_ROWS = 40  # of one sequence in a step
MESSAGE = "the system gives the native engine no more memory"

_forward = NativeBackend.forward


def forward(self: NativeBackend, batch: HostBatch) -> ForwardResult:
    """Fail, as when the system refuses memory, if a sequence has too many rows in the step."""
    if np.diff(batch.row_starts).max() > MOST_ROWS:
        raise MemoryError(MESSAGE)
    return _forward(self, batch)


def make(arguments: EngineArguments, wrap: Wrap) -> CoreAndFacts:
    """Build the engine: a factory for `octavo.engine.process`."""
    NativeBackend.forward = forward  # type: ignore[method-assign]
    return build_model_engine(arguments, wrap)
