"""A real engine whose file of weights becomes shorter after it was opened, while it is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from octavo.backends.native.backend import NativeBackend
from octavo.engine.process import CoreAndFacts, Wrap, build_model_engine
from octavo.options.engine import EngineArguments

_prepare = NativeBackend.prepare


def make(arguments: EngineArguments, wrap: Wrap, cache_key: bytes) -> CoreAndFacts:
    """Build the engine: a factory for `octavo.engine.process`."""

    def prepare(self: NativeBackend, *given: Any, **options: Any) -> None:
        """Truncate the file just before the threads read it that pack the weights."""
        os.truncate(Path(arguments.model) / "model.safetensors", 4096)
        _prepare(self, *given, **options)

    NativeBackend.prepare = prepare  # type: ignore[method-assign]
    return build_model_engine(arguments, wrap, cache_key)
