"""The kinds of tensor files that the engine of a model can load while it runs: a line for each.

A kind is a module of this package, whose function `make(engine)` returns a `TensorFileKind`. There
is none yet; docs/how-to/add-an-adapter-kind.md adds one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.build import BuiltEngine
    from octavo.engine.tensor_files import TensorFileKind

FILE_KINDS: dict[str, str] = {
    # The name of a kind, as the command `load` has it → its module.
}


def make_file_kinds(engine: BuiltEngine) -> dict[str, TensorFileKind]:
    """Make every kind for an engine, before its process is confined."""
    modules = {
        name: import_module(f"octavo.engine.{module}") for name, module in FILE_KINDS.items()
    }
    return {name: module.make(engine) for name, module in modules.items()}
