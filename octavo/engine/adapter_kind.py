"""The kind of files that adapters (LoRA) are; an engine that takes none imports nothing of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.adapter_loader import AdapterLoader
    from octavo.engine.build import BuiltEngine


def make(engine: BuiltEngine) -> AdapterLoader | None:
    """Return what loads adapters, for an engine that takes some."""
    return engine.adapters
