"""A real engine on the native backend, whose steps find no memory for long pieces of a prompt."""

from __future__ import annotations

import numpy as np

from octavo.backends.base import ForwardResult, HostBatch
from octavo.backends.native.backend import NativeBackend
from octavo.engine.process import HostedEngine, Wrap, local_engine
from octavo.engine_arguments import EngineArguments

MOST_ROWS = 40  # of one sequence in a step
TOLD = "the system gives the native engine no more memory"

_forward = NativeBackend.forward


def forward(self: NativeBackend, batch: HostBatch) -> ForwardResult:
    """What the system's refusal looks like to whoever called."""
    if np.diff(batch.row_starts).max() > MOST_ROWS:
        raise MemoryError(TOLD)
    return _forward(self, batch)


def make(arguments: EngineArguments, wrap: Wrap) -> HostedEngine:
    """The factory, for `octavo.engine.process`."""
    NativeBackend.forward = forward  # type: ignore[method-assign]
    return local_engine(arguments, wrap)
