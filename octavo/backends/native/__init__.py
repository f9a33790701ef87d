"""The native CPU engine."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from octavo.backends.interface import check_interface


def __getattr__(name: str) -> ModuleType:
    """Import the extension module when it is first asked for; refuse one of other sources."""
    if name != "_native":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = import_module(f"{__name__}._native")
    try:
        check_interface(getattr(module, "INTERFACE", None), str(module.__file__))
    except ImportError:
        globals().pop(name, None)  # the import has put it there: it must not be found next time
        raise
    return module
