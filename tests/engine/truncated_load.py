"""A real engine whose file of weights becomes shorter after it was opened, while it is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from octavo.backends.adapter_weights import AdapterSettings
from octavo.backends.base import KVLayout
from octavo.backends.native.backend import NativeBackend
from octavo.engine.process import CoreAndFacts, Wrap, build_model_engine
from octavo.layers import Model
from octavo.options.engine import EngineArguments

_prepare = NativeBackend.prepare


def make(arguments: EngineArguments, wrap: Wrap, cache_key: bytes) -> CoreAndFacts:
    """Build the engine: a factory for `octavo.engine.process`."""

    def prepare(
        self: NativeBackend,
        model: Model,
        layout: KVLayout,
        block_size: int,
        kept_layers: Sequence[int] = (),
        adapters: AdapterSettings | None = None,
    ) -> None:
        """Truncate the file just before the threads read it that pack the weights."""
        os.truncate(Path(arguments.model) / "model.safetensors", 4096)
        _prepare(self, model, layout, block_size, kept_layers, adapters)

    NativeBackend.prepare = prepare  # type: ignore[method-assign]
    return build_model_engine(arguments, wrap, cache_key)
