"""The adapters (LoRA) of an engine: what the settings ask of reader, backend and loader."""

from __future__ import annotations

# Tensors of some types are read with these, and a confined engine can import nothing later.
import ml_dtypes  # noqa: F401

import octavo.loader.blocks.decoders  # noqa: F401
from octavo.adapters.module_choice import Names
from octavo.adapters.pairs import Limits
from octavo.adapters.read import AdapterReader
from octavo.backends.adapter_weights import AdapterSettings
from octavo.backends.base import Backend
from octavo.engine.adapter_loader import AdapterLoader, Bounds
from octavo.layers import Model
from octavo.options.adapters import num_resident
from octavo.options.engine import EngineArguments


class AdapterParts:
    """The reader of a model's adapters, made before the model is bound."""

    def __init__(self, arguments: EngineArguments, model: Model) -> None:
        self._arguments = arguments
        named = arguments.lora_target_modules
        modules = None if named is None else Names(list(named), "lora_target_modules")
        has_wholes = arguments.max_saved_loras > 0
        limits = Limits(arguments.max_lora_rank, modules, has_wholes)
        self._reader = AdapterReader(model, limits)
        self.settings = AdapterSettings(
            slots=arguments.max_loras,
            max_rank=arguments.max_lora_rank,
            targets=self._reader.targets.paths(modules),
            wholes=has_wholes,
            dtype=arguments.lora_dtype,
        )

    def make_loader(self, backend: Backend, num_bytes: int) -> AdapterLoader:
        """Return what loads adapters for a backend that is prepared for them."""
        bounds = Bounds(num_resident(self._arguments), num_bytes)
        return AdapterLoader(
            self._reader, backend.adapter, bounds, self._arguments.adapter_directory
        )
