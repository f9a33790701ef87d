"""The kinds of tensor files that the engine of a model can load while it runs: a line for each.

A kind is a module of this package, whose function `make(engine)` returns a `TensorFileKind`, or
None for an engine that takes no such files. docs/how-to/add-a-file-kind.md adds one.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.engine.build import BuiltEngine
    from octavo.engine.tensor_files import TensorFileKind

FILE_KINDS: dict[str, str] = {
    # The name of a kind, as the command `load` has it → its module.
    "lora": "adapter_kind",
}


def make_file_kinds(engine: BuiltEngine) -> dict[str, TensorFileKind]:
    """Make every kind for an engine, before its process is confined."""
    modules = {
        name: import_module(f"octavo.engine.{module}") for name, module in FILE_KINDS.items()
    }
    made = {name: module.make(engine) for name, module in modules.items()}
    return {name: kind for name, kind in made.items() if kind is not None}
