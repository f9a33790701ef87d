"""The number by which Python recognises an extension module that was built from other sources.

Such a module would read the tuples of a step at wrong places, which ends the process.
"""

from __future__ import annotations

# The same number as in csrc/bind/parts.h. Raise both when a function of the extension module, or
# one of the tuples that it reads (octavo/backends/step.py), changes.
INTERFACE = 1


class OldModuleError(ImportError):
    """An extension module that these Python files cannot use."""


def check_interface(found: int, path: str) -> None:
    """Raise OldModuleError if an extension module has another interface than Python expects."""
    if found != INTERFACE:
        raise OldModuleError(
            f"the extension module {path} has interface {found}, and these Python files need "
            f"{INTERFACE}: build it again (`make setup` in a checkout), or install Octavo again"
        )
