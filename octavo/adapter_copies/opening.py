"""The copies of an engine that has adapters, made before the engine starts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.options.engine import EngineArguments

if TYPE_CHECKING:
    from octavo.adapter_copies.copies import AdapterCopies


def open_copies(arguments: EngineArguments) -> tuple[EngineArguments, AdapterCopies | None]:
    """Return the arguments with the directory of the copies, and those, if there are adapters."""
    if not arguments.enable_lora:
        return arguments, None
    from octavo.adapter_copies.copies import AdapterCopies  # here, since few engines have adapters

    copies = AdapterCopies(arguments.lora_copies_bytes, arguments.max_lora_bytes)
    return replace(arguments, adapter_directory=str(copies.path)), copies
